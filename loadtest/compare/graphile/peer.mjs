// This peer is graphile-worker with the settings that its page on performance advises:
// concurrency 24, a local queue of 500 and batched completions. pollInterval is the interval
// in ms at which an idle worker looks for due jobs. With its default of 2 s, lateness would
// consist of little else.

import { readFileSync } from "node:fs";
import { Logger, makeWorkerUtils, run as runWorker } from "graphile-worker";
import pg from "pg";
import { fail, run } from "./phase.mjs";

const connectionString = process.env.DATABASE_URL;
const { version } = JSON.parse(readFileSync(new URL("node_modules/graphile-worker/package.json", import.meta.url)));
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const preset = {
  worker: {
    connectionString, logger, concurrentJobs: 24, maxPoolSize: 25, pollInterval: 10,
    localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
  },
};
const pool = new pg.Pool({ connectionString, max: 2 });
let utils;
let runner;

run({
  version,
  batch: 5000,
  adders: 2,
  async prepare() {
    utils = await makeWorkerUtils({ preset });
    await utils.migrate();
  },
  add: (jobs) => utils.addJobs(jobs.map(({ n, due, pad }) => ({ identifier: "noop", payload: { n, pad }, runAt: due }))),
  analyze: () => pool.query("ANALYZE graphile_worker._private_jobs"),
  async start(handle) {
    runner = await runWorker({ preset, noHandleSignals: true, taskList: { noop: (params) => handle(params) } });
  },
  // stop writes the completions of the jobs that have run. It also ends the polling, so that
  // the queries that follow are not part of the figures.
  settle: () => runner.stop(),
  async left() {
    const { rows } = await pool.query("SELECT count(*)::int AS n FROM graphile_worker._private_jobs WHERE run_at <= now() OR attempts > 0");
    return rows[0].n;
  },
  async close() {
    await utils.release();
    await pool.end();
  },
}).catch(fail);
