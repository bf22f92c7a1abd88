// This module does one phase of the work of package compare for schedulers in Node. It
// measures, counts and reports.
//
// A peer has:
//   version        its version
//   batch          jobs in one call of add
//   adders         number of concurrent calls of add
//   prepare()      creates the tables
//   add(jobs)      stores jobs {n, due, pad}; due is a Date
//   analyze()      analyzes the tables after a bulk insert
//   start(handle)  starts workers that call handle(params) for each job
//   settle()       is called after the last job has run; returns when all completions are in the database
//   left()         is called after settle; returns the number of the phase's jobs that are not completed
//   close()        ends all connections

import { parseArgs } from "node:util";

const aMonth = 30 * 24 * 3600 * 1000;
const pace = 10;

// The time from the last run of the warm-up to the measured jobs, as in phase.go.
const afterWarmup = 1000;

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const emit = (event) => process.stdout.write(JSON.stringify(event) + "\n");
const now = () => performance.timeOrigin + performance.now();

// Adds of a burst, as in phase.go.
const burstBatch = 1000;
const burstAdders = 2;

// dueOf distributes the due instants evenly, in another order than that of the adds.
const dueOf = (n, jobs, spread) => (spread * ((n * 7919) % jobs)) / jobs;

function parseWork() {
  const options = {};
  for (const name of ["phase", "jobs", "params-bytes", "spread-ms", "waiting", "rate", "ahead-ms", "warmup"]) options[name] = { type: "string" };
  const { values } = parseArgs({ options });
  return {
    phase: values.phase,
    jobs: Number(values.jobs),
    paramsBytes: Number(values["params-bytes"]),
    spread: Number(values["spread-ms"]),
    waiting: Number(values.waiting),
    rate: Number(values.rate),
    ahead: Number(values["ahead-ms"]),
    warmup: Number(values.warmup),
  };
}

export async function run(peer) {
  const work = parseWork();
  const pad = "x".repeat(Math.max(0, work.paramsBytes - `{"n":,"pad":""}`.length - String(work.jobs).length));
  const runs = new Uint8Array(work.jobs);
  const late = work.phase === "lateness" || work.phase === "burst" ? new Float64Array(work.jobs) : null;
  let total = 0;
  let first = 0;
  let begun = 0;
  let cpu;
  let dueAt; // returns the due instant of job n in ms
  let finished;
  const all = new Promise((done) => (finished = done));

  const handle = (params) => {
    if (total === 0) first = now();
    if (late) late[params.n] = now() - dueAt(params.n);
    runs[params.n]++;
    if (++total === work.jobs) finished();
  };
  const begin = () => {
    emit({ event: "begin" });
    begun = now();
    cpu = process.cpuUsage();
  };
  const addMany = async (count, due, number, batch = peer.batch, adders = peer.adders) => {
    let next = 0;
    const adder = async () => {
      while (next < count) {
        const from = next;
        const to = (next = Math.min(count, from + batch));
        const built = now();
        const jobs = [];
        for (let n = from; n < to; n++) jobs.push({ n: number(n), due: new Date(due(n, built)), pad });
        await peer.add(jobs);
      }
    };
    await Promise.all(Array.from({ length: adders }, adder));
  };
  const addBurst = async () => {
    const from = now();
    const dues = new Float64Array(work.jobs);
    dueAt = (n) => dues[n];
    const due = (n, built) => (dues[n] = Math.round(built + work.ahead + dueOf(n, work.jobs, work.spread)));
    await addMany(work.jobs, due, (n) => n, burstBatch, burstAdders);
    return now() - from;
  };
  const addAll = async () => {
    const from = now();
    dueAt = (n) => from + dueOf(n, work.jobs, work.spread);
    await addMany(work.jobs, dueAt, (n) => n);
    return now() - from;
  };
  const addPaced = async (first, end) => {
    const from = now();
    dueAt = (n) => Math.round(from + work.ahead + ((n - first) * 1000) / work.rate);
    for (let next = first; next < end; ) {
      await sleep(pace);
      const to = Math.min(end, first + Math.floor(((now() - from) * work.rate) / 1000));
      const jobs = [];
      for (; next < to; next++) jobs.push({ n: next, due: new Date(dueAt(next)), pad });
      if (jobs.length > 0) await peer.add(jobs);
    }
    return now() - from;
  };
  const warmUp = async () => {
    if (work.warmup === 0) return;
    await addPaced(0, work.warmup);
    while (total < work.warmup) await sleep(pace);
    await sleep(afterWarmup);
  };

  await peer.prepare();
  const far = now() + aMonth;
  await addMany(work.waiting, (n) => far + dueOf(n, work.waiting, aMonth), () => 0);
  await peer.analyze();
  let added;
  switch (work.phase) {
    case "cycle":
      await peer.start(handle);
      begin();
      added = await addAll();
      break;
    case "drain":
      added = await addAll();
      await peer.analyze();
      await sleep(work.spread);
      begin();
      await peer.start(handle);
      break;
    case "burst":
      await peer.start(handle);
      begin();
      added = await addBurst();
      await peer.analyze();
      break;
    case "lateness":
      await peer.start(handle);
      await warmUp();
      begin();
      added = await addPaced(work.warmup, work.jobs);
      break;
    default:
      throw new Error(`unknown phase ${work.phase}`);
  }
  await all;
  await peer.settle();
  const whole = now() - (work.phase === "drain" ? first : begun);
  const used = process.cpuUsage(cpu);
  emit({ event: "end" });
  const left = await peer.left();
  await peer.close();
  const once = runs.reduce((sum, n) => sum + (n === 1 ? 1 : 0), 0);
  emit({
    event: "result", version: peer.version, enqueue_s: added / 1000, whole_s: whole / 1000,
    cpu_s: (used.user + used.system) / 1e6, runs: total, violations: Math.max(left, work.jobs - once),
    lateness_ms: quantiles(late?.subarray(work.warmup)),
  });
  process.exit(0);
}

function quantiles(late) {
  if (!late || late.length === 0) return { p50: 0, p99: 0, max: 0 };
  late.sort();
  const at = (q) => late[Math.min(late.length - 1, Math.floor(q * late.length))];
  return { p50: at(0.5), p99: at(0.99), max: at(1) };
}

export function fail(err) {
  console.error(err);
  process.exit(1);
}
