// Hono with hono-rate-limiter: a fixed window.
import { serve } from "@hono/node-server";
import { Hono } from "hono";
import { rateLimiter } from "hono-rate-limiter";
import { counting, port } from "./counting.mjs";

const app = new Hono();
app.use(
  rateLimiter({ windowMs: 1000, limit: 20, standardHeaders: "draft-6", keyGenerator: () => "all" }),
);
app.get("/", (context) => context.text("Here you are.\n"));
counting(serve({ fetch: app.fetch, port, hostname: "127.0.0.1" }));
