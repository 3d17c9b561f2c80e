// Members as a ring: this node in it with the others around, a line to each that it is connected with, as wide as what
// went over it, with the round trip.

import { html } from "./lib.js";
import { describeMember, isDialOut, showBytes, showMs } from "./words.js";

const CENTRE = 200;
const RADIUS = 132;
const NAMED_FLAT = 14; // more than so many names are written outwards

export function Ring({ members, peers }) {
  const byId = new Map(peers.map((peer) => [peer.id, peer]));
  const me = members.find((member) => member.me);
  const others = members.filter((member) => !member.me);
  const most = Math.max(...peers.map((peer) => peer.bytes_sent + peer.bytes_received), 1);
  const up = members.filter((member) => member.alive).length;
  const label = `${up} of ${members.length} members in sight: ${members
    .map((member) => `${member.name} ${describeMember(member, byId.get(member.id)).word}`)
    .join(", ")}`;
  return html`<div>
    <svg class="ring" viewBox="0 12 400 376" role="img" aria-label=${label}>
      ${others.map((member, i) => html`<${Link} member=${member} peer=${byId.get(member.id)} at=${place(i, others.length)} most=${most} count=${others.length} />`)}
      ${me && html`<circle class="me" cx=${CENTRE} cy=${CENTRE} r="26" stroke-width="2" />`}
      <text x=${CENTRE} y=${CENTRE + 44} text-anchor="middle">${me ? cut(me.name) : "observer"}</text>
      <g class=${me ? "ok" : "off"} transform=${`translate(${CENTRE} ${CENTRE})`}><circle r="9" /></g>
      ${others.map((member, i) => html`<${Node} member=${member} peer=${byId.get(member.id)} at=${place(i, others.length)} count=${others.length} />`)}
    </svg>
    <ul class="legend">
      <li>● up</li><li>▲ silent, or through others</li><li>○ away</li><li>■ suspended</li><li>◆ dials out only</li>
      <li>line: bytes exchanged, and the round trip</li>
    </ul>
  </div>`;
}

function place(i, count) {
  const angle = -Math.PI / 2 + (2 * Math.PI * i) / count;
  return { angle, x: CENTRE + RADIUS * Math.cos(angle), y: CENTRE + RADIUS * Math.sin(angle) };
}

function Link({ member, peer, at, most, count }) {
  if (!member.connected && !member.through.length) return null;
  const bytes = peer ? peer.bytes_sent + peer.bytes_received : 0;
  const width = 1.5 + 7 * Math.sqrt(bytes / most);
  return html`<g>
    <line class="link ${member.connected ? "" : "through"}" x1=${CENTRE} y1=${CENTRE} x2=${at.x} y2=${at.y} stroke-width=${width} />
    ${count <= NAMED_FLAT && typeof peer?.round_trip_s === "number" && html`<${Trip} at=${at} away=${8 + width / 2} seconds=${peer.round_trip_s} />`}
  </g>`;
}

// The round trip, beside its line: on the right, or above one that lies flat.
function Trip({ at, away, seconds }) {
  const [sin, cos] = [Math.sin(at.angle), Math.cos(at.angle)];
  const side = Math.abs(sin) < 0.1 ? -Math.sign(cos) : -Math.sign(sin);
  const x = CENTRE + 0.58 * (at.x - CENTRE) - side * sin * away;
  const y = CENTRE + 0.58 * (at.y - CENTRE) + side * cos * away;
  return html`<text class="far" x=${x} y=${y} dy="3" text-anchor=${Math.abs(sin) < 0.1 ? "middle" : "start"}>${showMs(seconds)}</text>`;
}

function Node({ member, peer, at, count }) {
  const { state, word } = describeMember(member, peer);
  const size = count > 24 ? 6 : 9;
  const shapes = {
    ok: isDialOut(member) ? html`<path d=${`M0 ${-size - 2} ${size + 2} 0 0 ${size + 2} ${-size - 2} 0Z`} />` : html`<circle r=${size} />`,
    warn: html`<path d=${`M0 ${-size - 1} ${size + 1} ${size} ${-size - 1} ${size}Z`} />`,
    bad: html`<rect x=${-size} y=${-size} width=${2 * size} height=${2 * size} />`,
    off: html`<circle r=${size} />`,
  };
  const told = peer ? `, ${showBytes(peer.bytes_sent)} sent, ${showBytes(peer.bytes_received)} received${typeof peer.round_trip_s === "number" ? `, answers in ${showMs(peer.round_trip_s)}` : ""}` : "";
  return html`<g>
    <g class=${state} transform=${`translate(${at.x} ${at.y})`}><title>${`${member.name}: ${word}${told}`}</title>${shapes[state]}</g>
    <${Name} member=${member} word=${word} at=${at} count=${count} />
  </g>`;
}

function Name({ member, word, at, count }) {
  const away = RADIUS + (count > NAMED_FLAT ? 16 : 22);
  const x = CENTRE + away * Math.cos(at.angle);
  const y = CENTRE + away * Math.sin(at.angle);
  if (count > NAMED_FLAT) {
    const isLeft = Math.cos(at.angle) < 0;
    const turn = (at.angle * 180) / Math.PI + (isLeft ? 180 : 0);
    return html`<text class="far" transform=${`translate(${x} ${y}) rotate(${turn})`} text-anchor=${isLeft ? "end" : "start"} dy="3">${cut(member.name, 9)}</text>`;
  }
  const cos = Math.cos(at.angle);
  const anchor = Math.abs(cos) < 0.3 ? "middle" : cos < 0 ? "end" : "start";
  const lift = Math.sin(at.angle) < -0.3 ? -14 : Math.sin(at.angle) > 0.3 ? 8 : -4;
  return html`<text x=${x} y=${y + lift} text-anchor=${anchor}>
    ${cut(member.name)}<tspan class="far" x=${x} dy="14">${word}</tspan>
  </text>`;
}

function cut(name, most = 14) {
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}
