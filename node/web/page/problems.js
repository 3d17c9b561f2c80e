// What is wrong, each with its remedy: worked out from one overview, so that every view says the same.

import { describeMember, list, plural, showBytes, showId, showSeconds } from "./words.js";

const LITTLE_DISK = 2e9;
const LAST_EVENTS_MS = 5 * 60 * 1000;
const TOGETHER_S = 3; // statuses come each second or so

export function findProblems({ overview, evidence, events }) {
  const { status, members, peers } = overview;
  const away = findAway(members, peers, status);
  const isExplained = away.some((one) => one.isWhy); // why it waits is told once
  return [
    ...(isExplained ? [] : findStall(status, members)),
    ...findOtherHistory(status),
    ...findSilence(status),
    ...away,
    ...findTraining(status),
    ...findClocks(status),
    ...findEvidence(evidence),
    ...findRefusals(peers.peers, events),
    ...findStore(status),
    ...findVersions(members, status),
    ...findWaiting(overview),
  ];
}

function findStall(status, members) {
  const found = [];
  if (status.stalled) {
    const away = members.members.filter((member) => !member.alive).map((member) => member.name).sort();
    const remedy = away.length
      ? `Start ${list(away)}, or mend the network between you; the round goes on by itself then.`
      : "Look at the members below; the round goes on by itself once what it waits for is there.";
    found.push({ state: "bad", what: `The round waits: ${status.stall_reason}.`, remedy });
  } else if (!status.ready && status.unready_reason) {
    const lacksQuorum = status.members_in_sight < status.quorum;
    const remedy = lacksQuorum
      ? "Rounds wait until enough members see each other, and then go on by themselves."
      : "After a start this takes a minute: the data are read and the worker is made ready. Where it lasts, the node's log says why.";
    found.push({ state: lacksQuorum ? "bad" : "warn", what: `This node is not ready: ${status.unready_reason}.`, remedy });
  }
  return found;
}

function findSilence(status) {
  if (!status.silence) return [];
  return [{ state: "bad", what: `This node signs nothing: ${status.silence}.`, remedy: "It goes on by itself once enough heights have passed." }];
}

function findOtherHistory(status) {
  if (!status.other_history) return [];
  return [{ state: "bad", what: `There are two histories: ${status.other_history}.`, remedy: "Where the members have the other one, this node has joined by a false file: stop it, and join anew by a true one." }];
}

function findAway(members, peers, status) {
  const byId = new Map(peers.peers.map((peer) => [peer.id, peer]));
  const away = members.members.filter((member) => !member.me && describeMember(member).state !== "ok");
  const together = findTogether(away);
  const found = away
    .filter((member) => !together.includes(member))
    .map((member) => {
      const since = member.silent_s === null ? "it was not heard of yet" : `nothing heard for ${showSeconds(member.silent_s)}`;
      const { word } = describeMember(member, byId.get(member.id));
      const remedy = member.through.length
        ? "Its packets come through others: open a way between the two where you can."
        : `See whether its daemon runs and its address is right. Rounds go on while ${members.quorum} of ${members.members.length} are in sight.`;
      return { state: "warn", what: `${member.name} is ${word}: ${since}.`, remedy };
    });
  return together.length ? [describeCut(together, members, status), ...found] : found;
}

// Who fell silent at one time with others: rather a network that was cut than daemons that ended.
function findTogether(away) {
  const silent = away.filter((member) => !member.alive && !member.through.length && member.silent_s !== null);
  const first = Math.min(...silent.map((member) => member.silent_s));
  const together = silent.filter((member) => member.silent_s - first < TOGETHER_S);
  return together.length > 1 ? together : [];
}

function describeCut(together, members, { done }) {
  const names = together.map((member) => member.name).sort();
  const isEnough = members.members.filter((member) => member.alive).length >= members.quorum;
  const what = `${list(names)} went out of sight together: nothing heard for ${showSeconds(Math.min(...together.map((member) => member.silent_s)))}.`;
  const ask = `Ask at one of them whether it sees the ${together.length > 2 ? "others" : "other"}: if it does, mend the network between you and them, else start their daemons.`;
  const wait = `${done ? "All rounds are made; changes wait" : "Rounds wait"} for ${members.quorum} of ${members.members.length}; nothing was lost, and they go on by themselves.`;
  return { state: isEnough ? "warn" : "bad", what, remedy: `${ask} ${isEnough ? "Rounds go on meanwhile." : wait}`, isWhy: !isEnough };
}

function findTraining(status) {
  const found = [];
  const add = (state, text, remedy, link) => text && found.push({ state, what: text, remedy, link });
  add("bad", status.training_trouble && `There is no training here: ${status.training_trouble}.`, "The node's log says more; it goes on voting meanwhile.");
  add("warn", status.not_approved && `This site does not train: ${status.not_approved}.`, "Read what it says and approve it, if you agree.", ["#/federation", "proposals"]);
  add("warn", status.spoiled_reason && `The aggregate of round ${status.spoiled_round} was not taken over: ${status.spoiled_reason}.`, "The node went on from its own model. Look at the contributions of that round.");
  add("warn", status.data_change && `This site's data have changed: ${status.data_change}.`, "Nothing need be done where that was meant.");
  for (const sign of status.not_learning) {
    add("warn", `The model does not learn: ${sign}.`, "Look at the classes one by one.", ["#/learning", "learning"]);
  }
  for (const sign of status.model_signs) {
    add("warn", `The model learns, but ${sign}.`, "The curves and the classes show more.", ["#/learning", "learning"]);
  }
  if (status.paused) add("off", "Training is paused here; this node goes on voting.", "Resume it in the settings.", ["#/settings", "settings"]);
  if (status.stops_after !== null) add("off", `This node ends after round ${status.stops_after}.`, "Withdraw that in the settings.", ["#/settings", "settings"]);
  return found;
}

function findClocks(status) {
  return status.clocks_wrong.map((line) => ({
    state: "warn",
    what: `A clock is off: ${line}.`,
    remedy: "Set it by NTP on that machine (chronyc tracking, timedatectl). Blocks of the future are held back.",
  }));
}

function findEvidence(evidence) {
  return evidence.slice(-3).map((one) => ({
    state: "bad",
    what: `${one.name} signed two different things for one ${one.slot} at height ${one.height}.`,
    remedy: "Both are kept as evidence, and its contributions are refused. Ask who runs it, by voice.",
  }));
}

function findRefusals(peers, events) {
  const since = new Date(Date.now() - LAST_EVENTS_MS).toISOString();
  const recent = events.filter((event) => event.kind === "rejected" && event.time > since);
  const found = new Map();
  for (const { data } of recent) {
    const whose = data.author_name ?? data.miner_name ?? showId(data.block);
    found.set(whose, { state: "warn", what: `Refused of ${whose} at height ${data.height}: ${data.reason}.`, remedy: "It was left out of the round here. Where it happens again, ask who runs it.", link: [`#/round/${data.height}`, "round"] });
  }
  for (const peer of peers) {
    if (peer.banned_s !== null) found.set(`${peer.name}, banned`, { state: "bad", what: `${peer.name} is banned for ${showSeconds(peer.banned_s)}: ${peer.banned_for === "hand" ? "by an operator" : "for what it sent"}.`, remedy: `fednode peers unban ${peer.name} ends it.` });
  }
  return [...found.values()].slice(0, 5);
}

function findStore(status) {
  if (status.disk_free_bytes > LITTLE_DISK) return [];
  return [{ state: "bad", what: `Only ${showBytes(status.disk_free_bytes)} are left on the disk.`, remedy: "Make room: a node whose disk is full stops signing." }];
}

function findVersions(members, status) {
  const found = [];
  if (status.upgrade) found.push({ state: "warn", what: status.upgrade, remedy: "" });
  const others = members.members.filter((member) => member.version && member.version !== status.version);
  if (others.length) {
    const told = others.map((member) => `${member.name} ${member.version}`);
    found.push({ state: "off", what: `Releases differ: ${list(told)}, here ${status.version}.`, remedy: "They go together for now; update when it suits you." });
  }
  return found;
}

function findWaiting({ status }) {
  if (!status.unapproved_changes) return [];
  const one = status.unapproved_changes === 1;
  return [{ state: "off", what: `${plural(status.unapproved_changes, "change")} ${one ? "waits" : "wait"} for this site's answer.`, remedy: "Read what it does, then approve it or leave it.", link: ["#/federation", "proposals"] }];
}

