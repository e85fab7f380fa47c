// OpenWorkflow for Node.js, on PostgreSQL.
import { OpenWorkflow } from "openworkflow";
import { BackendPostgres } from "openworkflow/postgres";
import postgres from "postgres";

const [workload, dsn, sizes] = process.argv.slice(2);
const { runs, steps, sleep, slots } = JSON.parse(sizes);
const receipt = { order: "order-000042", cents: 4200, paid: true };
const expected = runs * steps;
let executed = 0;
let reached;
const all = new Promise((resolve) => (reached = resolve));
let held;
const gate = new Promise((resolve) => (held = resolve));

const pay = async () => {
  executed += 1;
  if (executed >= expected) reached();
  return receipt;
};
const now = () => performance.now() / 1000;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

const backend = await BackendPostgres.connect(dsn);
const client = new OpenWorkflow({ backend });
const sequential = client.defineWorkflow({ name: "steps" }, async ({ input, step }) => {
  let total = 0;
  for (let n = 0; n < input.value; n++) total += (await step.run({ name: `pay-${n}` }, pay)).cents;
  return total;
});
const parallel = client.defineWorkflow({ name: "parallel" }, async ({ input, step }) => {
  const numbers = Array.from({ length: input.value }, (_, n) => n);
  const receipts = await Promise.all(numbers.map((n) => step.run({ name: `pay-${n}` }, pay)));
  return receipts.length;
});
const sleeper = client.defineWorkflow({ name: "sleeper" }, async ({ input, step }) => {
  await step.sleep("sleep", `${input.value}s`);
});
const resumed = client.defineWorkflow({ name: "resumed" }, async ({ input, step }) => {
  for (let n = 0; n < input.value; n++) await step.run({ name: `pay-${n}` }, pay);
  await step.run({ name: "hold" }, async () => {
    held();
    await new Promise(() => {});
  });
});

const result = {};
const worker = client.newWorker({ concurrency: slots });
if (workload === "w3") {
  await worker.start();
  const took = [];
  for (let n = 0; n <= runs; n++) {
    const begun = performance.now();
    await (await sequential.run({ value: 1 })).result();
    took.push(performance.now() - begun);
  }
  result.latencies_ms = took.slice(1);
} else if (workload === "w6-prepare" || workload === "w6") {
  if (workload === "w6-prepare") await resumed.run({ value: steps });
  const begun = now();
  await worker.start();
  await gate;
  if (workload === "w6-prepare") process.kill(process.pid, "SIGKILL");
  result.work_s = now() - begun;
} else {
  const [program, value] = { w4: [parallel, steps], w5: [sleeper, sleep] }[workload] ?? [sequential, steps];
  let begun = now();
  for (let n = 0; n < runs; n += 100) {
    await Promise.all(Array.from({ length: Math.min(100, runs - n) }, () => program.run({ value })));
  }
  result.start_s = now() - begun;
  const sql = postgres(dsn, { max: 1 });
  begun = now();
  await worker.start();
  if (workload !== "w5") await all;
  for (;;) {
    const [{ count }] = await sql`SELECT count(*)::int AS count FROM openworkflow.workflow_runs WHERE finished_at IS NULL`;
    if (count === 0) break;
    await pause(0.02);
  }
  result.work_s = now() - begun;
}
console.log(JSON.stringify(result));
process.exit(0);
