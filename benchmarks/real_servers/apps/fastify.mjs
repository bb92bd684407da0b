// Fastify with @fastify/rate-limit: a fixed window.
import rateLimit from "@fastify/rate-limit";
import fastify from "fastify";
import { counting, port } from "./counting.mjs";

const app = fastify();
await app.register(rateLimit, { max: 20, timeWindow: 1000 });
app.get("/", async () => "Here you are.\n");
counting(app.server);
await app.listen({ port, host: "127.0.0.1" });
