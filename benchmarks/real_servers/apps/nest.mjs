// NestJS with @nestjs/throttler, without a compiler: the decorators are called as functions.
import "reflect-metadata";
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { counting, port } from "./counting.mjs";

class Pages {
  page() {
    return "Here you are.\n";
  }
}
Get()(Pages.prototype, "page", Object.getOwnPropertyDescriptor(Pages.prototype, "page"));
Controller()(Pages);

class App {}
Module({
  imports: [ThrottlerModule.forRoot([{ ttl: 1000, limit: 20 }])],
  controllers: [Pages],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})(App);

const app = await NestFactory.create(App, { logger: false });
counting(app.getHttpServer());
await app.listen(port, "127.0.0.1");
