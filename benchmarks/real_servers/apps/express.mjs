// Express with express-rate-limit: a fixed window that begins with a client's first request.
import { createServer } from "node:http";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { counting, option, port } from "./counting.mjs";

const headers =
  option === "legacy"
    ? { legacyHeaders: true, standardHeaders: false }
    : { legacyHeaders: false, standardHeaders: option };
const app = express();
app.use(rateLimit({ windowMs: 1000, limit: 20, ...headers }));
app.get("/", (_, response) => response.send("Here you are.\n"));
counting(createServer(app)).listen(port, "127.0.0.1");
