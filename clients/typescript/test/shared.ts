/** What every client must say of the same notification: clients/notifications.json is theirs, too. */
import { readFileSync } from "node:fs";

import type { Notification } from "../src/index.js";

interface Case {
  what: string;
  note: Notification;
  field: string | null;
  says: string;
}

function meant(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(meant);
  if (typeof value !== "object" || value === null) return value;
  const { repeat, times, nested } = value as { repeat?: [string, number]; times?: [unknown, number]; nested?: number };
  if (repeat) return repeat[0].repeat(repeat[1]);
  if (times) return Array<unknown>(times[1]).fill(times[0]);
  if (nested) return JSON.parse("[".repeat(nested) + "]".repeat(nested));
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, meant(member)]));
}

// From build/test.
const file = readFileSync(new URL("../../../notifications.json", import.meta.url), "utf8");
const cases = (JSON.parse(file) as { cases: Case[] }).cases.map((one) => ({ ...one, note: meant(one.note) as Notification }));
export const accepted = cases.filter(({ field }) => field === null);
export const refused = cases.filter((one): one is Case & { field: string } => one.field !== null);
