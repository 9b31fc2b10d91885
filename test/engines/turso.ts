// Turso's own engine, in this process; it applies the migrations itself.
import { join } from "node:path";
import { connect } from "@tursodatabase/database";
import { applyMigrations } from "../support.js";
import { copies, packageVersion, sweepByBatch, type Engine, type Queue } from "./adapter.js";

const migrated = copies(async (folder) => {
  const db = await connect(join(folder, "queue.db"));
  await applyMigrations((script) => db.exec(script));
  await db.close();
});

export const turso: Engine = {
  name: "Turso's engine",
  version: `@tursodatabase/database ${packageVersion("@tursodatabase/database")}`,
  open: async () => {
    const db = await connect(join(await migrated(), "queue.db"));
    const batch: Queue["batch"] = async (statements) => (await db.batch(statements, { mode: "immediate" })).map(({ rows }) => rows);
    return { batch, read: batch, sweep: sweepByBatch(batch), close: () => db.close() };
  },
};
