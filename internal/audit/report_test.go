package audit

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

// The JSON and the text are for programs and people that were written for them.
func TestReportLooksTheSame(t *testing.T) {
	at := time.Date(2026, 7, 31, 18, 0, 0, 0, time.UTC)
	clean := Report{Table: `"public"."outbox"`, Stream: "jobs", Taken: at, LSN: 0x16B3748, Covered: true, Rows: 12_345_678, Entries: 1}
	clean.settle()
	full := Report{
		Table: `"public"."outbox"`, Stream: "jobs", Since: &at, Taken: at, LSN: 0x16B3748, Covered: true, Rows: 1, Entries: 20_000, OtherEntries: 1,
		Missing:    Missing{Findings: Findings{Count: 1200, List: []Finding{{ID: "7"}, {ID: "8"}}}, Deletable: 3, Oldest: &at},
		Duplicated: Findings{Count: 1, List: []Finding{{ID: "9", Entries: []string{"1785520800000-0", "1785520800001-0"}}}},
		Foreign:    Findings{Count: 1, List: []Finding{{ID: "10\x1b[2J", Entries: []string{"1785520800002-0"}}}},
		Changed:    Findings{Count: 1, List: []Finding{{ID: "11", Entries: []string{"1785520800003-0"}}}},
		Waiting:    Findings{Count: 1, List: []Finding{{ID: "12"}}},
		Trimmed:    Findings{Count: 4000, List: []Finding{{ID: "1"}}},
		Dead:       Findings{Count: 1, List: []Finding{{ID: "13"}}},
		NoID:       2,
		Gone:       5,
	}
	full.settle()
	for name, r := range map[string]Report{"clean": clean, "full": full} {
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		document, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "testdata/"+name+".txt", text.Bytes())
		golden(t, "testdata/"+name+".json", append(document, '\n'))
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
}
