// rate-limiter-flexible in memory, with the headers that its documentation sets: Retry-After on
// every response, also where nothing was throttled.
import { createServer } from "node:http";
import { RateLimiterMemory } from "rate-limiter-flexible";
import { counting, port } from "./counting.mjs";

const limiter = new RateLimiterMemory({ points: 20, duration: 1 });

function headers({ msBeforeNext, remainingPoints }) {
  return {
    "Retry-After": msBeforeNext / 1000,
    "X-RateLimit-Limit": 20,
    "X-RateLimit-Remaining": remainingPoints,
    "X-RateLimit-Reset": Math.ceil((Date.now() + msBeforeNext) / 1000),
  };
}

const server = createServer((request, response) =>
  limiter.consume(request.socket.remoteAddress).then(
    (result) => response.writeHead(200, headers(result)).end("Here you are.\n"),
    (result) => response.writeHead(429, headers(result)).end("Too Many Requests\n"),
  ),
);
counting(server).listen(port, "127.0.0.1");
