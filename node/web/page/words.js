// Numbers, times and names in words, as the command line has them.

// A name where somebody decides, with the first characters of its key beside it.
export function showName(name, id) {
  return id ? `${name} (${id.slice(0, 4)})` : name;
}

export function showId(id) {
  return id ? id.slice(0, 8) : "–";
}

export function showTime(text) {
  return text ? text.slice(0, 19).replace("T", " ") : "–";
}

export function showClock(text) {
  return text ? text.slice(11, 19) : "–";
}

export function showBytes(count) {
  if (count === null || count === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000) return unit === "B" ? `${count} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

export function showSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${seconds.toFixed(3)} s`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 6000) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(0)} h`;
  return `${(seconds / 86400).toFixed(0)} d`;
}

export function showMs(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : `${(seconds * 1000).toFixed(0)} ms`;
}

export function showNumber(value, digits = 4) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

// The shares of the federation's model and of the one trained alone in what is mixed.
export function sayShares(weight) {
  return `${showNumber(weight, 2)} to ${showNumber(1 - weight, 2)}`;
}

export function showCount(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

export function showAhead(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return `${Math.abs(seconds).toFixed(2)} s ${seconds >= 0 ? "ahead" : "behind"}`;
}

export function plural(count, one, several = `${one}s`) {
  return `${count} ${count === 1 ? one : several}`;
}

export function list(names) {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

export const KINDS = {
  add_member: "add member",
  remove_member: "remove member",
  replace_key: "replace key",
  start_run: "start run",
  set_rounds: "set rounds",
  end_run: "end run",
  set_rules: "set rules",
  add_observer: "add observer",
  remove_observer: "remove observer",
};

export const MEASURES = {
  accuracy: "accuracy",
  balanced_accuracy: "balanced accuracy",
  macro_f1: "macro F1",
  weighted_f1: "weighted F1",
  auc: "AUC",
  average_precision: "average precision",
  brier: "Brier score",
  calibration_error: "calibration error",
  exact_match: "exact match",
  hamming_loss: "Hamming loss",
  micro_f1: "micro F1",
  r2: "R2",
  mae: "mean absolute error",
  rmse: "root mean squared error",
  loss: "test loss",
  training_loss: "training loss",
  sensitivity: "sensitivity",
  specificity: "specificity",
  precision: "precision",
  f1: "F1",
  ppv: "PPV",
  npv: "NPV",
};

// What stands for how well a model does, of a summary of measures: the first that there is.
export function getMain(summary) {
  return ["balanced_accuracy", "accuracy", "macro_f1", "r2"].find((name) => name in summary) ?? Object.keys(summary)[0];
}

// How a member stands, seen from this node: a state, and a word for it.
export function describeMember(member, peer) {
  if (member.suspended) return { state: "bad", word: "suspended" };
  if (member.me) return { state: "ok", word: "this node" };
  if (member.connected && member.alive) return { state: "ok", word: "up" };
  if (member.through.length) return { state: "warn", word: `through ${list(member.through)}` };
  if (member.alive) return { state: "warn", word: "connecting" };
  if (member.connected) return { state: "warn", word: "silent" };
  return { state: "off", word: peer && peer.banned_s !== null ? "banned" : "away" };
}

export function isDialOut(member) {
  return !member.me && member.address === null;
}

export function describeOrigin(member) {
  return member.since ? `height ${member.since}, by change ${showId(member.change)}` : "genesis";
}

// What a change lacks to stand in the next block.
export function describeMissing(missing) {
  const lacks = [];
  if (missing.before) lacks.push(`${plural(missing.before, "more approval", "more approvals")} (${missing.quorum} decide)`);
  if (missing.after) lacks.push(`${missing.after} more of those who will be members (${missing.quorum_after} decide)`);
  if (missing.training) lacks.push(`${missing.training} more that will train`);
  if (missing.readiness !== null) lacks.push(`the readiness of ${showId(missing.readiness)}`);
  return lacks.join(", ") || "nothing: it will be in the next block";
}
