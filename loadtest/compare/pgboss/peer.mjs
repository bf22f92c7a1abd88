// This peer is pg-boss with bulk inserts, large batches, the shortest polling interval that
// it allows, and no pause between full batches. As by default, rows stay until its own
// maintenance removes them.

import { readFileSync } from "node:fs";
import { PgBoss } from "pg-boss";
import pg from "pg";
import { fail, run } from "./phase.mjs";

const connectionString = process.env.DATABASE_URL;
const { version } = JSON.parse(readFileSync(new URL("node_modules/pg-boss/package.json", import.meta.url)));
const queue = "noop";
const boss = new PgBoss({ connectionString, max: 10 });
const pool = new pg.Pool({ connectionString, max: 1 });
boss.on("error", (err) => console.error(err));

run({
  version,
  batch: 5000,
  adders: 2,
  async prepare() {
    await boss.start();
    await boss.createQueue(queue);
  },
  add: (jobs) => boss.insert(queue, jobs.map(({ n, due, pad }) => ({ data: { n, pad }, startAfter: due }))),
  analyze: () => pool.query("ANALYZE pgboss.job"),
  async start(handle) {
    const options = { batchSize: 1000, localConcurrency: 2, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    await boss.work(queue, options, async (jobs) => {
      for (const job of jobs) handle(job.data);
    });
  },
  settle: () => boss.offWork(queue, { wait: true }),
  async left() {
    const { rows } = await pool.query(
      "SELECT count(*)::int AS n FROM pgboss.job WHERE name = $1 AND (start_after <= now() OR state > 'created') AND (state <> 'completed' OR retry_count > 0)", [queue]);
    return rows[0].n;
  },
  async close() {
    await pool.end();
    await boss.stop({ graceful: false });
  },
}).catch(fail);
