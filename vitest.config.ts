import { defineConfig } from "vitest/config";

// Each test starts real processes and servers; two at a time is what a small machine carries.
export default defineConfig({
  test: { include: ["test/**/*.test.ts"], testTimeout: 60_000, hookTimeout: 60_000, maxWorkers: 2 },
});
