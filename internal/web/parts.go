package web

import (
	"regexp"
	"strings"
)

// part is a piece of a sentence: words, or a command to be copied.
type part struct {
	Text string `json:"text"`
	Code bool   `json:"code,omitempty"`
}

// command finds what is to be run in a sentence of an error: what stands in
// backticks, SQL and commands of Redis, and walrelay's own. A statement goes on
// to its semicolon, or as far as stop finds.
var command = regexp.MustCompile("`[^`]+`" +
	`|\bBEGIN; .*? COMMIT;` +
	`|\b(?:ALTER (?:SYSTEM|ROLE|TABLE|PUBLICATION|DATABASE)|GRANT [A-Z]+|REVOKE [A-Z]+|` +
	`CREATE (?:PUBLICATION|SCHEMA|TABLE|INDEX|UNIQUE INDEX|ROLE)|DROP (?:PUBLICATION|TRIGGER|TABLE|INDEX)|` +
	`SELECT (?:pg_\w+\(|[\w*, ]+ FROM)|(?:COMMIT|ROLLBACK) PREPARED|DELETE FROM|UPDATE \S+ SET|ACL SETUSER|CONFIG SET)` +
	`(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|[^;'"` + "`" + `])*;?` +
	`|\bwalrelay (?:run|poll|setup|check|skip|heal|audit|purge|status|teardown)\b` +
	`(?: --(?:id|since|listen)[= ](?:'(?:[^']|'')*'|[^\s;,.)']+)| --[a-z-]*[a-z])*`)

// stop is where a statement without a semicolon ends, and the sentence goes on.
var stop = regexp.MustCompile(`, (?:or|and) | (?:or|and) (?:run|restart|start|take|set|ROLLBACK) | \((?:as|from|on the|where) |: |\.$|$`)

// quotes are what stop does not look into.
var quotes = regexp.MustCompile(`'(?:[^']|'')*'|"(?:[^"]|"")*"`)

// partsOf takes a sentence apart. The parts make the sentence again, but for the
// backticks.
func partsOf(sentence string) []part {
	parts := []part{}
	words := func(text string) {
		if text != "" {
			parts = append(parts, part{Text: text})
		}
	}
	for {
		at := command.FindStringIndex(sentence)
		if at == nil {
			words(sentence)
			return parts
		}
		code := sentence[at[0]:at[1]]
		if strings.HasPrefix(code, "`") {
			words(sentence[:at[0]])
			parts = append(parts, part{Text: strings.Trim(code, "`"), Code: true})
			sentence = sentence[at[1]:]
			continue
		}
		if !strings.HasSuffix(code, ";") {
			bare := quotes.ReplaceAllStringFunc(code, func(q string) string { return strings.Repeat("x", len(q)) })
			code = code[:stop.FindStringIndex(bare)[0]]
		}
		if strings.Count(code, "(") < strings.Count(code, ")") { // the sentence's own
			code = code[:strings.LastIndexByte(code, ')')]
		}
		words(sentence[:at[0]])
		sentence = sentence[at[0]+len(code):]
		// What a quote follows that is never closed is no whole statement.
		parts = append(parts, part{Text: code, Code: !strings.HasPrefix(sentence, "'") && !strings.HasPrefix(sentence, `"`)})
	}
}
