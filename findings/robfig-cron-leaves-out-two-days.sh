#!/usr/bin/env bash
# robfig/cron fires a daily rule at 9:00 on 363 of the 365 days of a year where clocks change by half an hour.
#
# One would expect that a change of clocks at 2:00 concerns rules of that hour only. In Australia/Lord_Howe "0 9 * * *" is left out
# on the days of both changes, and "0 0 * * *" on the days after them, although each of these times exists once. With clocks that
# change by an hour (Berlin), both rules fire on each day.
#
# Seen with github.com/robfig/cron/v3 3.0.1 and the zone data of Go 1.26, year 2027. Prints for each zone:
# "Australia/Lord_Howe 9:00 without 04-04 10-03, 0:00 without 04-05 10-04" and "Europe/Berlin 9:00 all, 0:00 all".
# What it means for us: a daily job is tried in zones whose clocks change by half an hour (docs/repeating.md#when-clocks-change).
# Needs Go and its module proxy.
set -euo pipefail
target=$(mktemp -d)
trap 'chmod -R u+w "$target"; rm -rf "$target"' EXIT
cd "$target"
cat >go.mod <<'MODULE'
module finding

go 1.22

require github.com/robfig/cron/v3 v3.0.1
MODULE
cat >main.go <<'PROGRAM'
package main

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata"

	"github.com/robfig/cron/v3"
)

// without returns the days of 2027 on which a rule does not fire.
func without(rule, zone string) string {
	place, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	schedule, err := cron.ParseStandard(rule)
	if err != nil {
		panic(err)
	}
	fired := map[string]bool{}
	for at := time.Date(2026, 12, 31, 12, 0, 0, 0, place); at.Year() < 2028; at = schedule.Next(at) {
		fired[at.Format("2006-01-02")] = true
	}
	var missing []string
	for day := time.Date(2027, 1, 1, 12, 0, 0, 0, place); day.Year() == 2027; day = day.AddDate(0, 0, 1) {
		if !fired[day.Format("2006-01-02")] {
			missing = append(missing, day.Format("01-02"))
		}
	}
	if missing == nil {
		return "all"
	}
	return "without " + strings.Join(missing, " ")
}

func main() {
	for _, zone := range []string{"Australia/Lord_Howe", "Europe/Berlin"} {
		fmt.Printf("%s 9:00 %s, 0:00 %s\n", zone, without("0 9 * * *", zone), without("0 0 * * *", zone))
	}
}
PROGRAM
export GOFLAGS=-mod=mod GOPATH="$target/go"
seen=$(go run . 2>"$target/log") || { cat "$target/log" >&2; exit 1; }
expected="Australia/Lord_Howe 9:00 without 04-04 10-03, 0:00 without 04-05 10-04
Europe/Berlin 9:00 all, 0:00 all"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
