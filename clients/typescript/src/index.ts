/** Commit a notification in the same transaction as your data; Postcommit delivers it. */
export { Postcommit, type Options } from "./client.js";
export { Conflict, Invalid, PostcommitError, Refused, Unavailable, Untrusted, Unverified } from "./errors.js";
export { type Folder, Inbox, type InboxEvent, type InboxMessage, type InboxPage, type UserToken } from "./inbox.js";
export type { Enqueued, Json, Notification, Recipient, Source, Status } from "./notification.js";
export * as key from "./key.js";
export * as pg from "./pg.js";
export * as webhook from "./webhook.js";
