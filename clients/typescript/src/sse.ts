/** Server-sent events, as the HTML standard describes them. */

/** The most characters of one event. */
export const EVENT_LENGTH = 4 * 1024 * 1024;

/** Id so far, kind and data of each event; what has no data is none. */
export async function* events(stream: AsyncIterable<Uint8Array>): AsyncGenerator<{ id: string; event: string; data: string }, void, void> {
  let [id, event, size] = ["", "message", 0];
  let data: string[] = [];
  for await (const line of lines(stream)) {
    if (line === "") {
      if (data.length) yield { id, event, data: data.join("\n") };
      [event, data, size] = ["message", [], 0];
      continue;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") {
      data.push(value);
      size += value.length + 1;
      if (size > EVENT_LENGTH) throw new Error(`an event of the stream has more than ${EVENT_LENGTH} characters`);
    } else if (name === "event") event = value || "message";
    else if (name === "id" && !value.includes("\0")) id = value;
  }
}

/** Ended by LF, CR LF or CR. What is not ended when the stream ends is left out: half an event is none. */
async function* lines(stream: AsyncIterable<Uint8Array>): AsyncGenerator<string, void, void> {
  const decoder = new TextDecoder();
  let buffer = "";
  for await (const chunk of stream) {
    buffer += decoder.decode(chunk, { stream: true });
    // A CR at the end may be half of a CR LF.
    const held = buffer.endsWith("\r") ? "\r" : "";
    const ended = buffer.slice(0, buffer.length - held.length).split(/\r\n|\n|\r/);
    buffer = (ended.pop() ?? "") + held;
    if (buffer.length > EVENT_LENGTH) throw new Error(`a line of the stream has more than ${EVENT_LENGTH} characters`);
    yield* ended;
  }
}
