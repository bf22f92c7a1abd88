// Adds, lists and updates a task over HTTP. All types are those of the OpenAPI document: a
// misspelt path, field or enum value does not compile.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { env: Record<string, string | undefined> };

type Task = components["schemas"]["Task"];
type Failure = components["schemas"]["Error"];

const api = createClient<paths>({
  baseUrl: process.env.PERCEPTOR_URL,
  headers: { Authorization: `Bearer ${process.env.PERCEPTOR_TOKEN}` },
});

// must returns the answer of a call, or throws what the service says.
function must<T>(answer: { data?: T; error?: Failure }): T {
  if (answer.data === undefined) {
    const failed = answer.error?.error;
    throw new Error(`${failed?.status}: ${failed?.message}`);
  }
  return answer.data;
}

const task: Task = {
  kind: "sensor.poll",
  type: "NON_BLOCKING",
  beginTime: new Date(Date.now() + 3_600_000).toISOString(),
  interval: "60s",
  params: { sensor: "7" },
};
// The request id makes the call safe to repeat.
const added = must(await api.POST("/v1/tasks", { params: { query: { requestId: crypto.randomUUID() } }, body: task }));
console.log("added", added.id);
const id = added.id!;

const list = must(await api.GET("/v1/tasks", { params: { query: { kind: "sensor.poll" } } }));
console.log("listed", list.tasks.map((t) => t.id).join(" "));

const updated = must(
  await api.PATCH("/v1/tasks/{id}", {
    params: { path: { id }, query: { updateMask: "maxCount" } },
    body: { maxCount: "5" },
  }),
);
console.log("updated", updated.maxCount, updated.version);

const refused = await api.PATCH("/v1/tasks/{id}", {
  params: { path: { id }, query: { updateMask: "interval" } },
  body: { interval: "soon" },
});
console.log("refused", refused.error?.error.status, refused.error?.error.message);
