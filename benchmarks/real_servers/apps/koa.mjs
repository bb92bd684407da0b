// Koa with koa-ratelimit: a fixed window, in memory.
import { createServer } from "node:http";
import Koa from "koa";
import ratelimit from "koa-ratelimit";
import { counting, port } from "./counting.mjs";

const app = new Koa();
app.use(ratelimit({ driver: "memory", db: new Map(), duration: 1000, max: 20, id: (it) => it.ip }));
app.use((context) => {
  context.body = "Here you are.\n";
});
counting(createServer(app.callback())).listen(port, "127.0.0.1");
