# The front door. `make` alone prints this list; every target installs and builds what it needs by itself.
# OBSERVE=1 and JSON=1 on a target are the program's --observe and --json.
.DEFAULT_GOAL := help
SWEEPERS := node dist/main.js
FLAGS = $(if $(filter-out 0,$(OBSERVE)),--observe) $(if $(filter-out 0,$(JSON)),--json) $(if $(filter-out 0,$(WAIT)),--wait)
# USER is also the name of whoever is logged in: only the one on make's command line counts.
AS_USER = $(if $(filter command,$(origin USER)),$(if $(filter-out 0,$(USER)),--user))
VERBS := migrate migrate-status sweep-expire sweep-revalidate sweep-prune sweep-daily sweep-all sweep-daemon sweep-would-release sweep-proof sweep-explain verify

##@ See it
demo: build ## A fresh embedded queue, swept: observed, then for real, before and after
	@$(SWEEPERS) demo

##@ The database
migrate: ## Apply db/migrations (a file: dbmate; a server: the same files, the same bookkeeping)
migrate-status: ## What is applied and what is pending; fails where something is pending
verify: ## Look for rows that must not exist (db/verify); fails where there are any

##@ Sweeping
sweep-expire: ## Expire leases that have run out
sweep-revalidate: ## Judge the parked tasks; release the ready ones where the mode file says enabled
sweep-prune: ## Delete events past the retention
sweep-daily: ## Revalidate, then prune
sweep-all: ## Expire, then daily
sweep-daemon: ## Run all on their schedule in one process, without systemd, until it is told to stop

##@ Looking
sweep-would-release: ## The parked tasks that an enabled run would release, and why
sweep-explain: ## Each step's query plan
sweep-proof: ## Seed fixtures in a queue of their own, sweep, read back, clean up (WAIT=1: wait for the deployed schedule)

$(VERBS): build
	@$(SWEEPERS) $@ $(FLAGS)

##@ On a schedule
schedule: build ## The schedule for others to run: FORMAT=crontab, k8s, gha or systemd
	@$(SWEEPERS) schedule $(if $(FORMAT),--format $(FORMAT))
install-units: ## Put the systemd units in place (USER=1: this user's own); starts nothing
uninstall-units: ## Stop and remove them (USER=1 likewise)
install-units uninstall-units: build
	@DESTDIR='$(DESTDIR)' UNIT_DIR='$(UNIT_DIR)' $(SWEEPERS) $@ $(AS_USER)

##@ Working on it
build: dist/main.js ## Install packages and compile scripts/ to dist/
test: build ## Run the tests (TEST=park runs the files whose name holds "park")
	@npx vitest run $(TEST)
parity: build ## Random histories on PostgreSQL and on the port, compared (RUNS=20000 for a long run, SEED=n to repeat one)
	@RUNS=$(or $(RUNS),300) SEED=$(or $(SEED),$(shell date +%s)) npx vitest run test/parity
schema: node_modules/.package-lock.json ## Write db/schema.sql from db/migrations (needs the sqlite3 shell)
	@rm -rf .data/schema && mkdir -p .data/schema
	@npx dbmate --url sqlite:.data/schema/new.db --migrations-dir db/migrations --schema-file db/schema.sql up
units: build ## Write systemd/ from the headers of db/sweeps
	@DESTDIR=$(CURDIR) UNIT_DIR=systemd $(SWEEPERS) install-units >/dev/null && DESTDIR=$(CURDIR) UNIT_DIR=systemd/user $(SWEEPERS) install-units --user >/dev/null
help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' Makefile

node_modules/.package-lock.json: package.json package-lock.json
	@npm ci >&2
	@touch $@
dist/main.js: node_modules/.package-lock.json tsconfig.json $(wildcard scripts/*.ts scripts/lib/*.ts)
	@rm -rf dist && npx tsc && chmod +x $@

.PHONY: demo $(VERBS) schedule install-units uninstall-units build test parity schema units help
