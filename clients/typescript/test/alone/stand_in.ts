/** A server that answers as told, for what the real one does not do. */
import { type IncomingMessage, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";

export const ID = "01a1dfe4-d3eb-744a-9dfd-6472a841db01";

export interface Asked {
  n: number;
  method: string;
  path: string;
  headers: IncomingMessage["headers"];
  body: string;
}

/** Status, body and headers; undefined hangs up without a word; a function does it itself. */
export type Reply = [number, unknown, Record<string, string>?] | undefined | ((response: ServerResponse) => void);

export interface StandIn {
  url: string;
  asked: Asked[];
}

export function problem(status: number, kind: string, more: object = {}, headers: Record<string, string> = {}): Reply {
  return [status, { type: `urn:postcommit:problem:${kind}`, title: "No", status, detail: "what is wrong", ...more }, headers];
}

export async function standIn(script: (asked: Asked) => Reply, test: (server: StandIn) => Promise<void>): Promise<void> {
  const asked: Asked[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks).toString();
      const one = { n: asked.length + 1, method: request.method ?? "", path: request.url ?? "", headers: request.headers, body };
      asked.push(one);
      answer(response, script(one));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await test({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked });
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

function answer(response: ServerResponse, reply: Reply): void {
  if (reply === undefined) response.destroy();
  else if (typeof reply === "function") reply(response);
  else response.writeHead(reply[0], reply[2]).end(typeof reply[1] === "string" ? reply[1] : JSON.stringify(reply[1]));
}
