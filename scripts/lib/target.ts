// Which database: DATABASE_URL in dbmate's form or libSQL's, read in one place.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { EXIT, Failure, hide } from "./exit.js";

/**
 * `url` is what @libsql/client takes, `path` the file's (undefined for a server), `shown` fit for messages: no credentials.
 * A server that has not answered after `requestTimeoutMs` counts as not answering.
 */
export type Target = { url: string; path?: string; shown: string; authToken?: string; requestTimeoutMs: number };

/** Well above the 5 s after which a server ends a transaction. */
export const REQUEST_TIMEOUT_MS = 30_000;

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
      throw new Failure(EXIT.config, `DATABASE_URL must name a plain file, without parameters, got "${given.replace(/[?#].*/s, "?...")}": use sqlite:PATH`);
    }
    return { url: `file:${encodeURI(path)}`, path, shown: path, requestTimeoutMs: REQUEST_TIMEOUT_MS };
  }
  const url = URL.canParse(given) ? new URL(given) : undefined;
  if (!url || !/^(libsql|https?|wss?):$/.test(url.protocol) || !url.host) {
    throw new Failure(EXIT.config, `DATABASE_URL is none of ${FORMS}: correct it`);
  }
  if (url.username || url.password || url.searchParams.has("authToken")) {
    throw new Failure(EXIT.config, `DATABASE_URL for ${url.host} carries credentials: put the token into TURSO_AUTH_TOKEN instead`);
  }
  // White space around it is what a file or a copied line leaves there.
  const authToken = (env.TURSO_AUTH_TOKEN || readCredential(env))?.trim() || undefined;
  if (authToken) hide(authToken);
  if (authToken && /[^!-~]/.test(authToken)) throw new Failure(EXIT.refused, "TURSO_AUTH_TOKEN holds characters that no token has: copy it again, whole and on one line");
  return { url: given, shown: `${url.protocol}//${url.host}${url.pathname}`, authToken, requestTimeoutMs: readTimeout(env.SWEEP_REQUEST_TIMEOUT_MS) };
}

function readTimeout(given: string | undefined): number {
  if (!given) return REQUEST_TIMEOUT_MS;
  if (/^\d+$/.test(given) && Number(given) >= 100 && Number(given) <= 600_000) return Number(given);
  throw new Failure(EXIT.config, `SWEEP_REQUEST_TIMEOUT_MS must be whole milliseconds from 100 to 600000, got ${JSON.stringify(given)}`);
}

/** The token that systemd's LoadCredential hands over, out of anybody else's sight; undefined where there is none. */
function readCredential(env: NodeJS.ProcessEnv): string | undefined {
  if (!env.CREDENTIALS_DIRECTORY) return undefined;
  const path = join(env.CREDENTIALS_DIRECTORY, "turso-auth-token");
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT") return undefined;
    throw new Failure(EXIT.refused, `credential ${path} cannot be read (${code}): check LoadCredential in the unit`);
  }
}
