// Sets, finds, moves and cancels a timer with the generated types: `node program.js URL TOPIC`.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

const [url, topic] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url });

function check(holds: boolean, what: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(what));
}

const query = { id: "generated-2" };
const put = await client.PUT("/v1/timer", { params: { query }, body: { topic, value: "unpaid", delay: "1h" } });
check(put.error === undefined, put.error);
const found = await client.GET("/v1/timer", { params: { query } });
check(found.data?.timers[0].topic === topic, found);
const moved = await client.PATCH("/v1/timer", { params: { query }, body: { delay: "2h" } });
check(moved.error === undefined, moved.error);
const listed = await client.GET("/v1/timers", { params: { query: { topic } } });
check(listed.data?.complete === true && listed.data.timers.length === 1, listed);
const cancelled = await client.DELETE("/v1/timer", { params: { query } });
check(cancelled.data !== undefined && "verdict" in cancelled.data && cancelled.data.verdict === "cancelled", cancelled);
const refused = await client.POST("/v1/timers", { body: { topic: "no topic", value: "x", delay: "1h" } });
check(refused.error !== undefined && refused.error.code !== "", refused);
const workers = await client.GET("/v1/workers");
check(workers.data?.workers[0].ready === true, workers);
console.log("done");
