// A TCP proxy between the program and a real libSQL server, which does to each request what networks do.
import { connect, createServer, type AddressInfo, type Socket } from "node:net";

/**
 * What happens to one request:
 * `pass` nothing; `delay` it arrives later; `cut_before` the connection breaks before the server sees it; `cut_after` the
 * server has carried it out and the connection breaks before the answer; `hang` the server never sees it and nobody says so;
 * `hang_after` it is carried out and the answer never comes; `answer` something else answers; `answer_after` the same,
 * after the server has carried it out; `trickle` the answer comes, but never to its end.
 */
export type Fault =
  | { kind: "pass" | "cut_before" | "cut_after" | "hang" | "hang_after" | "trickle" }
  | { kind: "delay"; ms: number }
  | { kind: "answer" | "answer_after"; raw: string };

export type Proxy = {
  url: string;
  /** Requests seen so far. */
  requests: number;
  /** Decides what happens to the nth request, counted from 1. */
  fault(decide: (n: number) => Fault): void;
  stop(): Promise<void>;
};

/** One HTTP answer, as it goes over the wire. */
export function http(status: string, body: string, type = "application/json"): string {
  return `HTTP/1.1 ${status}\r\ncontent-type: ${type}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}

/**
 * Starts a proxy for the server at `upstream` (http://HOST:PORT). `listenOn` is its port, 0 any. Every HTTP request counts as one; of a web socket, its
 * opening counts, and `cut_after` and `hang_after` then wait for the answer to a batch.
 */
export async function startProxy(upstream: string, listenOn = 0): Promise<Proxy> {
  const { hostname, port } = new URL(upstream);
  let decide: (n: number) => Fault = () => ({ kind: "pass" });
  const open = new Set<Socket>();
  const server = createServer((client) => {
    const target = connect(Number(port), hostname);
    for (const socket of [client, target]) {
      open.add(socket);
      socket.on("error", () => {}).on("close", () => open.delete(socket));
    }
    let fault: Fault = { kind: "pass" };
    client.on("data", (chunk) => {
      const text = chunk.toString("latin1");
      const isNew = /^(?:GET|POST) \//.test(text);
      if (isNew) fault = decide(++proxy.requests);
      if (fault.kind === "cut_before") return void client.destroy();
      if (fault.kind === "hang") return;
      if (fault.kind === "answer") return void (isNew && client.write(fault.raw));
      if (fault.kind === "delay") return void setTimeout(() => target.write(chunk), fault.ms);
      target.write(chunk);
    });
    let isSocket = false;
    target.on("data", (chunk) => {
      const text = chunk.toString("latin1");
      if (/^HTTP\/1.1 101 /.test(text)) isSocket = true;
      // Until the answer to a batch, a web socket only greets.
      const greets = isSocket && !text.includes("step_results");
      if (greets || fault.kind === "pass" || fault.kind === "delay") return void client.write(chunk);
      if (fault.kind === "cut_after") return void client.destroy();
      if (fault.kind === "answer_after") return void client.write(fault.raw);
      if (fault.kind === "trickle") return void client.write(chunk.subarray(0, chunk.length - 20));
    });
    // What is late arrives although nobody waits for it any more.
    client.on("close", () => fault.kind !== "delay" && target.destroy());
    target.on("close", () => client.destroy());
  });
  await new Promise<void>((resolve) => server.listen(listenOn, "127.0.0.1", resolve));
  const proxy: Proxy = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests: 0,
    fault: (given) => {
      proxy.requests = 0;
      decide = given;
    },
    stop: async () => {
      for (const socket of open) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return proxy;
}
