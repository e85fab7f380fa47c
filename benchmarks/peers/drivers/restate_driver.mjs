// Restate: its server, which keeps its own log on the same disk, and its SDK for TypeScript.
//
// Runs cannot be queued without a worker, so that the time of w1 and w2 includes starting them, 500 at a time.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import * as restate from "@restatedev/restate-sdk";

// Node.js has it from version 22 on, and the SDK uses it.
Promise.withResolvers ??= () => {
  const all = {};
  all.promise = new Promise((resolve, reject) => Object.assign(all, { resolve, reject }));
  return all;
};

const [workload, , sizes] = process.argv.slice(2);
const { runs, steps, sleep, slots } = JSON.parse(sizes);
const receipt = { order: "order-000042", cents: 4200, paid: true };
let executed = 0;
const pay = async () => {
  executed += 1;
  return receipt;
};
const bench = restate.service({
  name: "bench",
  handlers: {
    steps: async (ctx, count) => {
      let total = 0;
      for (let n = 0; n < count; n++) total += (await ctx.run("pay", pay)).cents;
      return total;
    },
    parallel: async (ctx, count) => {
      const all = Array.from({ length: count }, () => ctx.run("pay", pay));
      return (await restate.RestatePromise.all(all)).length;
    },
    sleeper: async (ctx, seconds) => {
      await ctx.sleep(seconds * 1000);
    },
  },
});

const free = () =>
  new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const json = { "content-type": "application/json" };
const now = () => performance.now() / 1000;

const [ingress, admin, node, service] = await Promise.all([free(), free(), free(), free()]);
const folder = mkdtempSync(join(tmpdir(), "restate-"));
const binary = createRequire(import.meta.url).resolve("@restatedev/restate-server-linux-x64/package.json");
const server = spawn(join(dirname(binary), "bin", "restate-server"), ["--base-dir", folder, "--no-logo"], {
  env: {
    ...process.env,
    RESTATE_INGRESS__BIND_ADDRESS: `127.0.0.1:${ingress}`,
    RESTATE_ADMIN__BIND_ADDRESS: `127.0.0.1:${admin}`,
    RESTATE_BIND_ADDRESS: `127.0.0.1:${node}`,
    RESTATE_ADVERTISED_ADDRESS: `http://127.0.0.1:${node}`,
    RESTATE_LISTEN_MODE: "tcp",
    RESTATE_DISABLE_TELEMETRY: "true",
    RUST_LOG: "error",
  },
  stdio: ["ignore", "ignore", "inherit"],
});
const over = () => {
  server.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
};
process.on("exit", over);
process.on("SIGTERM", () => process.exit(1));

await restate.endpoint().bind(bench).listen(service);
for (let tries = 0; ; tries++) {
  const answer = await fetch(`http://127.0.0.1:${admin}/deployments`, {
    method: "POST",
    headers: json,
    body: JSON.stringify({ uri: `http://127.0.0.1:${service}` }),
  }).catch(() => undefined);
  if (answer?.ok) break;
  if (tries > 300) throw new Error(`the server does not take the deployment: ${await answer?.text()}`);
  await pause(0.1);
}
const call = async (handler, value) => {
  const url = `http://127.0.0.1:${ingress}/bench/${handler}`;
  const answer = await fetch(url, { method: "POST", headers: json, body: JSON.stringify(value) });
  if (!answer.ok) throw new Error(await answer.text());
  await answer.text();
};

const result = {};
await call("steps", 1);
executed = 0;
if (workload === "w3") {
  const took = [];
  for (let n = 0; n < runs; n++) {
    const begun = performance.now();
    await call("steps", 1);
    took.push(performance.now() - begun);
  }
  result.latencies_ms = took;
} else {
  const [handler, value] = { w4: ["parallel", steps], w5: ["sleeper", sleep] }[workload] ?? ["steps", steps];
  let left = runs;
  const line = async () => {
    while (left-- > 0) await call(handler, value);
  };
  const begun = now();
  await Promise.all(Array.from({ length: Math.min(workload === "w5" ? runs : slots, runs) }, line));
  result.work_s = now() - begun;
}
const count = async (query) => {
  const url = `http://127.0.0.1:${admin}/query`;
  const answer = await fetch(url, {
    method: "POST",
    headers: { ...json, accept: "application/json" },
    body: JSON.stringify({ query }),
  });
  const { rows } = await answer.json();
  return rows[0].count;
};
// The server keeps ended invocations, with their journals, for a day.
result.counted = {
  runs: await count("SELECT count(*) AS count FROM sys_invocation WHERE status = 'completed'"),
  steps: await count("SELECT count(*) AS count FROM sys_journal WHERE name = 'pay' AND entry_type LIKE '%Run'"),
};
console.log(JSON.stringify(result));
process.exit(0);
