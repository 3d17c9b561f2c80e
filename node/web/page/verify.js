// The checks of one block that a browser can make by itself, from the canonical bytes that a node gives: the seal and the
// id, the work, the digest of the body, the links, and every signature where the browser has Ed25519.
//
// The layouts are those of chain/codec.py and chain/approvals.py. What cannot be checked here is said: whether the members
// are the right ones is for who compares the chain's id with another member, and an aggregate is recomputed by the node.

const encoder = new TextEncoder();
const HEADER_BYTES = 194;
const PRECOMMIT = 2;

function tag(name) {
  const bytes = new Uint8Array(16);
  bytes.set(encoder.encode(`fn1.${name}`));
  return bytes;
}

function join(...pieces) {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function toHex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function fromHex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

// A node's id is its key: base32 of 32 bytes, lower case, without padding.
export function decodeId(text) {
  const bytes = [];
  let bits = 0;
  let held = 0;
  for (const letter of text) {
    const value = "abcdefghijklmnopqrstuvwxyz234567".indexOf(letter);
    if (value < 0) throw new Error(`${text}: no node id`);
    held = (held << 5) | value;
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      bytes.push((held >> bits) & 0xff);
      held &= (1 << bits) - 1;
    }
  }
  return Uint8Array.from(bytes.slice(0, 32));
}

async function hash(...pieces) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", join(...pieces)));
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  take(count) {
    if (this.at + count > this.bytes.length) throw new Error(`expected ${count} more bytes at ${this.at}`);
    const piece = this.bytes.subarray(this.at, this.at + count);
    this.at += count;
    return piece;
  }

  u8() {
    return this.take(1)[0];
  }

  u16() {
    this.take(2);
    return this.view.getUint16(this.at - 2);
  }

  u32() {
    this.take(4);
    return this.view.getUint32(this.at - 4);
  }

  u64() {
    this.take(8);
    return this.view.getBigUint64(this.at - 8);
  }
}

// A block's parts, each also as the bytes that it was hashed or signed as.
export function parseBlock(bytes) {
  const reader = new Reader(bytes);
  const header = reader.take(HEADER_BYTES);
  const fields = new Reader(header);
  fields.u16();
  const parsed = { header, height: fields.u64() };
  for (const name of ["prev", "body", "aggregate", "stateNext", "miner"]) parsed[name] = fields.take(32);
  fields.u64();
  fields.u64();
  parsed.difficulty = fields.u64();
  parsed.nonce = reader.take(8);
  parsed.bodyBytes = bytes.subarray(reader.at, bytes.length - 64);
  parsed.signature = bytes.subarray(bytes.length - 64);
  Object.assign(parsed, parseBody(parsed.bodyBytes));
  return parsed;
}

function parseBody(bytes) {
  const reader = new Reader(bytes);
  const found = { contributions: [], change: null, answers: [], readiness: [] };
  if (reader.u8() === 0) {
    const count = reader.u16();
    for (let i = 0; i < count; i++) {
      const start = reader.at;
      reader.take(8 + 32);
      const author = reader.take(32);
      const weight = reader.u32();
      const count = reader.u8();
      if (count & 0x80) reader.take(64); // since protocol 3: a secret that is opened, and the commitment to the next
      if (weight >= 0x80000000) reader.take(8); // a measure of the round before
      reader.take(41 * (count & 0x7f));
      found.contributions.push({ author, signed: bytes.subarray(start, reader.at), signature: reader.take(64) });
    }
    return found;
  }
  found.change = reader.take(reader.u32());
  const answers = reader.u16();
  for (let i = 0; i < answers; i++) found.answers.push({ index: reader.u16(), answer: reader.take(1), signature: reader.take(64) });
  const ready = reader.u8();
  for (let i = 0; i < ready; i++) found.readiness.push({ key: reader.take(32), place: reader.take(40), signature: reader.take(64) });
  return found;
}

export function parseCertificate(bytes) {
  const reader = new Reader(bytes);
  const view = reader.take(4);
  const votes = [];
  const count = reader.u16();
  for (let i = 0; i < count; i++) votes.push({ index: reader.u16(), signature: reader.take(64) });
  return { view, votes };
}

async function computeId(chainId, block) {
  const seal = await hash(tag("seal"), chainId, block.header);
  return toHex(await hash(seal, block.nonce));
}

let canVerify = null;

// Whether this browser has Ed25519.
async function hasEd25519() {
  canVerify ??= crypto.subtle
    .importKey("raw", new Uint8Array(32).fill(1), { name: "Ed25519" }, false, ["verify"])
    .then(() => true, (error) => error.name !== "NotSupportedError");
  return canVerify;
}

async function isSigned(key, kind, chainId, fields, signature) {
  try {
    const imported = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", imported, signature, join(tag(kind), chainId, fields));
  } catch {
    return false;
  }
}

// Checks `given`, as /chain/HEIGHT/bytes gives it, against what the node says of the block, and against the bytes of the
// blocks below and above where there are any. Each tick: { name, ok: true, false or null where it cannot be told, why }.
export async function checkBlock(given, said, below, above) {
  const ticks = [];
  const tick = (name, ok, why) => ticks.push({ name, ok, why });
  if (!globalThis.crypto?.subtle) {
    tick("this browser", null, "it hashes and verifies nothing on a page without TLS that is not on this machine");
    return ticks;
  }
  try {
    await check(given, said, below, above, tick);
  } catch (error) {
    tick("layout", false, `the bytes are no block: ${error.message}`);
  }
  return ticks;
}

async function check(given, said, below, above, tick) {
  const chainId = fromHex(given.chain_id);
  const block = parseBlock(fromBase64(given.block));
  const id = await computeId(chainId, block);
  tick("height", block.height === BigInt(said.height), `the header says ${block.height}, asked for was ${said.height}`);
  tick("seal and id", id === said.id, id === said.id ? `SHA-256 of the seal and the nonce is ${id}` : `expected ${said.id}, the bytes give ${id}`);
  if (said.height > 0) {
    const isWork = BigInt(`0x${id}`) * block.difficulty < 1n << 256n;
    const nonce = new Reader(block.nonce).u64();
    tick("proof of work", isWork, `nonce ${nonce} ${isWork ? "meets" : "misses"} difficulty ${block.difficulty}`);
  }
  const body = toHex(await hash(tag("body"), block.bodyBytes));
  tick("body", body === toHex(block.body) || said.height === 0, body === toHex(block.body) ? `its digest is ${body}` : `the header commits to ${toHex(block.body)}, the body gives ${body}`);
  await checkLinks(block, id, below, above, tick);
  if (said.height === 0) {
    tick("signatures", null, "block 0 follows from genesis, and nobody signs it");
    return;
  }
  if (!(await hasEd25519())) {
    tick("signatures", null, "this browser has no Ed25519; fednode chain verify checks them");
    return;
  }
  const members = given.members.map((member) => ({ ...member, key: decodeId(member.id) }));
  await checkMiner(block, id, chainId, members, tick);
  await checkBody(block, chainId, members, tick);
  await checkVotes(given, block, id, chainId, members, tick);
}

async function checkLinks(block, id, below, above, tick) {
  if (below) {
    const before = await computeId(fromHex(below.chain_id), parseBlock(fromBase64(below.block)));
    const isLinked = before === toHex(block.prev);
    tick("link below", isLinked, isLinked ? `its parent is the block at height ${below.height}` : `names ${toHex(block.prev)}, the block below is ${before}`);
  }
  if (above) {
    const named = toHex(parseBlock(fromBase64(above.block)).prev);
    tick("link above", named === id, named === id ? `the block at height ${above.height} stands on it` : `the block above stands on ${named}`);
  }
}

async function checkMiner(block, id, chainId, members, tick) {
  const isSeated = members.some((member) => toHex(member.key) === toHex(block.miner));
  const isOwn = await isSigned(block.miner, "block", chainId, fromHex(id), block.signature);
  tick("miner's signature", isOwn && isSeated, isOwn ? (isSeated ? "by a member's key" : "by a key that is no member's") : "does not hold for this id");
}

async function checkBody(block, chainId, members, tick) {
  const known = new Map(members.map((member) => [toHex(member.key), member.name]));
  if (block.change === null) {
    const bad = [];
    for (const one of block.contributions) {
      const name = known.get(toHex(one.author));
      if (!name || !(await isSigned(one.author, "contribution", chainId, one.signed, one.signature))) bad.push(name ?? toHex(one.author).slice(0, 8));
    }
    tick("contributions", bad.length === 0, bad.length ? `no valid signature of ${bad.join(", ")}` : `${block.contributions.length} signed by their authors`);
    return;
  }
  const changeId = await hash(tag("change"), chainId, block.change);
  const bad = [];
  for (const one of block.answers) {
    const member = members[one.index];
    const holds = member && (await isSigned(member.key, "approval", chainId, join(changeId, one.answer, member.key), one.signature));
    if (!holds) bad.push(member ? member.name : `number ${one.index}`);
  }
  for (const one of block.readiness) {
    const holds = await isSigned(one.key, "readiness", chainId, join(changeId, one.key, one.place), one.signature);
    if (!holds) bad.push("the new key");
  }
  tick("approvals", bad.length === 0, bad.length ? `no valid signature of ${bad.join(", ")}` : `${block.answers.length} of change ${toHex(changeId).slice(0, 8)}, signed by members`);
}

async function checkVotes(given, block, id, chainId, members, tick) {
  const certificate = parseCertificate(fromBase64(given.certificate));
  const height = block.header.subarray(2, 10);
  const good = new Set();
  const bad = [];
  for (const vote of certificate.votes) {
    const member = members[vote.index];
    const fields = member && join(Uint8Array.of(PRECOMMIT), height, certificate.view, fromHex(id), member.key);
    if (member && (await isSigned(member.key, "vote", chainId, fields, vote.signature))) good.add(vote.index);
    else bad.push(member ? member.name : `number ${vote.index}`);
  }
  const isEnough = good.size >= given.quorum && bad.length === 0;
  tick("certificate", isEnough, bad.length ? `no valid vote of ${bad.join(", ")}` : `${good.size} votes for this id, ${given.quorum} are needed`);
}

