package web

import (
	"slices"
	"strings"
	"testing"
)

func TestCommandsOfASentenceCanBeCopied(t *testing.T) {
	for sentence, want := range map[string][]string{
		"Redis has been away for 5 s (last error: dial tcp: connection refused); rows wait in PostgreSQL, which keeps their WAL.": nil,
		"raise max_slot_wal_keep_size, SELECT pg_reload_conf(); and run `walrelay heal`":                                          {"SELECT pg_reload_conf();", "walrelay heal"},
		"to append those that the stream lacks, run `walrelay heal --since TIME` with the time from which on":                     {"walrelay heal --since TIME"},
		"WAL is held back by an open transaction of pid 4711; to end that: SELECT pg_terminate_backend(4711);.":                   {"SELECT pg_terminate_backend(4711);"},
		"row 3 is locked by pid 12; to end it: SELECT pg_terminate_backend(12).":                                                  {"SELECT pg_terminate_backend(12)"},
		"to end it: COMMIT PREPARED 'a;b, or c' or ROLLBACK PREPARED 'a;b, or c'.":                                                {"COMMIT PREPARED 'a;b, or c'", "ROLLBACK PREPARED 'a;b, or c'"},
		`in database "shop": COMMIT PREPARED 'x'; or ROLLBACK PREPARED 'x';`:                                                      {"COMMIT PREPARED 'x';", "ROLLBACK PREPARED 'x';"},
		`marking is refused; to repair: GRANT UPDATE (published_at) ON public.outbox TO walrelay`:                                 {"GRANT UPDATE (published_at) ON public.outbox TO walrelay"},
		`GRANT UPDATE ("a, or b") ON public.outbox TO "or; take", or take --mark=none`:                                            {`GRANT UPDATE ("a, or b") ON public.outbox TO "or; take"`},
		`to repair: ALTER ROLE walrelay SET temp_file_limit = -1; -- as a superuser`:                                              {"ALTER ROLE walrelay SET temp_file_limit = -1;"},
		`BEGIN; DROP PUBLICATION w; CREATE PUBLICATION w FOR TABLE o WITH (publish = 'insert'); COMMIT; (on the primary)`:         {`BEGIN; DROP PUBLICATION w; CREATE PUBLICATION w FOR TABLE o WITH (publish = 'insert'); COMMIT;`},
		`ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL`:                                                      {"ALTER SYSTEM SET wal_level = 'logical';"},
		`drop slots that nobody uses: SELECT slot_name, database, restart_lsn FROM pg_replication_slots WHERE NOT active;`:        {"SELECT slot_name, database, restart_lsn FROM pg_replication_slots WHERE NOT active;"},
		`instead: walrelay skip --id 'it''s <b>'`:                                                                                 {`walrelay skip --id 'it''s <b>'`},
		`have it put on the stream "jobs:dead" instead: walrelay skip --id=-5; or, keep such documents elsewhere`:                 {"walrelay skip --id=-5"},
		`go back to walrelay run, or drop the slot with walrelay teardown.`:                                                       {"walrelay run", "walrelay teardown"},
		`quick, see walrelay setup --create-table --print-sql): the statement timed out`:                                          {"walrelay setup --create-table --print-sql"},
		`to go on without it: UPDATE public.outbox SET published_at = now() WHERE id = '5'`:                                       {"UPDATE public.outbox SET published_at = now() WHERE id = '5'"},
		`free its disk, or CONFIG SET stop-writes-on-bgsave-error no`:                                                             {"CONFIG SET stop-writes-on-bgsave-error no"},
		`PostgreSQL refuses UPDATE, and SELECT of the table`:                                                                      nil,
		`an open quote: GRANT SELECT ON outbox TO the relay's role`:                                                               nil,
		"a backtick ` and another": nil,
		"":                         nil,
	} {
		var got []string
		whole := ""
		for _, p := range partsOf(sentence) {
			whole += p.Text
			if p.Code {
				got = append(got, p.Text)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", sentence, got, want)
		}
		if without := strings.ReplaceAll(sentence, "`", ""); strings.ReplaceAll(whole, "`", "") != without {
			t.Errorf("%s\nbecame %s", sentence, whole)
		}
	}
}
