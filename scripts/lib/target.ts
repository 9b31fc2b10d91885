// Which database: DATABASE_URL in dbmate's form or libSQL's, read in one place.
import { EXIT, Failure } from "./exit.js";

/** `url` is what @libsql/client takes, `path` the file's (undefined for a server), `shown` fit for messages: no credentials. */
export type Target = { url: string; path?: string; shown: string; authToken?: string };

const FORMS = "sqlite:PATH, file:PATH, libsql://HOST, http(s)://HOST or ws(s)://HOST";

/**
 * The database that the environment names: DATABASE_URL, else TURSO_DATABASE_URL, else a file under .data/.
 * Throws a configuration failure that never quotes credentials.
 */
export function readTarget(env: NodeJS.ProcessEnv): Target {
  const given = env.DATABASE_URL || env.TURSO_DATABASE_URL || "sqlite:.data/queue.db";
  // Before anything else, so that no message below can quote a password.
  if (/^\w+:\/\/[^/]*@/.test(given)) throw new Failure(EXIT.config, "DATABASE_URL carries credentials: put the token into TURSO_AUTH_TOKEN instead");
  const file = /^(?:sqlite3?|file):(?:\/\/)?(.*)$/is.exec(given);
  if (file) {
    const path = file[1]!;
    if (path === "" || path === ":memory:" || /[?#]/.test(path)) {
      throw new Failure(EXIT.config, `DATABASE_URL must name a plain file, without parameters, got "${given.replace(/\?.*/s, "?...")}": use sqlite:PATH`);
    }
    return { url: `file:${encodeURI(path)}`, path, shown: path };
  }
  const url = URL.canParse(given) ? new URL(given) : undefined;
  if (!url || !/^(libsql|https?|wss?):$/.test(url.protocol) || !url.host) {
    throw new Failure(EXIT.config, `DATABASE_URL is none of ${FORMS}: correct it`);
  }
  if (url.username || url.password || url.searchParams.has("authToken")) {
    throw new Failure(EXIT.config, `DATABASE_URL for ${url.host} carries credentials: put the token into TURSO_AUTH_TOKEN instead`);
  }
  // White space around it is what a file or a copied line leaves there.
  const authToken = env.TURSO_AUTH_TOKEN?.trim() || undefined;
  if (authToken && /[^!-~]/.test(authToken)) throw new Failure(EXIT.refused, "TURSO_AUTH_TOKEN holds characters that no token has: copy it again, whole and on one line");
  return { url: given, shown: `${url.protocol}//${url.host}${url.pathname}`, authToken };
}
