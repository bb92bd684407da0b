// One line per response, "seconds status", and a server that ends with its process.
export function counting(server) {
  server.on("request", (_, response) =>
    response.on("finish", () => console.log(`${Date.now() / 1000} ${response.statusCode}`)),
  );
  server.keepAliveTimeout = 60_000;
  return server;
}

export const port = Number(process.argv[2]);
export const option = process.argv[3];
