// A worker in JavaScript: it takes activities from PostgreSQL, does them, and says how they went. It knows Perdure by plain SQL only.
//
//   perdure sql --database postgresql --json > statements.json
//   DATABASE_URL=postgresql://... STATEMENTS=statements.json node worker.js
//
// Kill it at any moment: what it had is given to another worker when its leases end.
import { randomUUID, createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const LEASE = Number(process.env.LEASE_SECONDS ?? 15) * 1e6; // in microseconds, as all times are
const BATCH = Number(process.env.BATCH ?? 8);
const RETRY_AFTER = 1e6;
const RUNTIME = "node"; // types that another runtime has registered are not claimed
const worker = `node:${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`;

// What is served, by type. Input is what the caller gave, by name; what is returned is the result.
const activities = {
  "image.resize.v1": async ({ name, width }, activity) => {
    for (let tile = activity.details?.tile ?? 0; tile < 4; tile++) {
      activity.signal.throwIfAborted(); // it was cancelled, or another worker has the run by now
      await sleep(5);
      await activity.heartbeat({ tile: tile + 1 }); // where the next attempt goes on, should this one be lost
    }
    return { name, width, bytes: name.length * width };
  },
  "image.digest.v1": async ({ name }) => createHash("sha256").update(name).digest("hex"),
};

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 4 });
pool.on("error", (error) => console.error(`a connection was lost: ${error.message}`));
const statements = Object.fromEntries(
  JSON.parse(readFileSync(process.env.STATEMENTS ?? "statements.json", "utf8")).map((one) => [one.name, one.sql]),
);

// Every statement may be repeated after its answer was lost, so that whatever the database says of itself is tried again.
async function ask(name, ...values) {
  for (let wait = 100; ; wait = Math.min(wait * 2, 5000)) {
    try {
      return (await pool.query({ name: `perdure_${name}`, text: statements[name], values })).rows;
    } catch (error) {
      // Class 22: what was sent is at fault, and would be again.
      if (error.code?.startsWith("22")) throw error;
      console.error(`${name}: ${error.message}; trying again`);
      await sleep(wait + Math.random() * wait);
    }
  }
}

async function perform(run) {
  const lease = [run.id, run.token, run.nonce];
  const stop = new AbortController();
  const beat = async (details) => {
    const [held] = await ask("heartbeat", ...lease, LEASE, details === undefined ? null : JSON.stringify(details));
    if (!held) stop.abort(new Error("the run was given to another worker"));
    else if (held.cancelled) stop.abort(new Error("cancelled"));
  };
  const beating = setInterval(() => beat().catch(console.error), LEASE / 3e3);
  try {
    if (run.cancelled) throw new Error("cancelled");
    const activity = { details: JSON.parse(run.details), attempt: run.attempt, signal: stop.signal, heartbeat: beat };
    const result = await activities[run.type](JSON.parse(run.input), activity);
    await ask("complete", ...lease, JSON.stringify(result ?? null));
  } catch (error) {
    // A later attempt may succeed; how many there are is what the run says, or three.
    const again = run.max_attempts > 0 || run.attempt < 3 ? RETRY_AFTER * 2 ** (run.attempt - 1) : null;
    await ask("fail", ...lease, error.name, error.message, again);
  } finally {
    clearInterval(beating);
  }
}

let stopping = false;
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => (stopping = true));

async function main() {
  for (const type of Object.keys(activities)) await ask("register", type, RUNTIME, "An example of a worker in JavaScript.");
  console.log(`${worker} is ready`);
  while (!stopping) {
    const runs = await ask("claim", worker, randomUUID(), "image.%", null, BATCH, LEASE, RUNTIME);
    const known = runs.filter((run) => run.type in activities);
    // Other workers serve the others.
    for (const run of runs.filter((run) => !(run.type in activities))) await ask("release", run.id, run.token, run.nonce);
    await Promise.all(known.map(perform));
    if (known.length === 0) await sleep(100);
  }
  await pool.end();
}

await main();
