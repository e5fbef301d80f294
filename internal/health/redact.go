package health

import (
	"regexp"
	"strings"
)

// masked stands where a secret was.
const masked = "xxxxx"

// keyword finds password=…, sslpassword = '…' and PGPASSWORD=…, also with the
// quotes escaped by a text around it. An unquoted value ends at white space:
// libpq allows every other character in it, so that a URL's query loses what
// follows the password. So be it.
var keyword = regexp.MustCompile(`(?is)((?:password|passwd|requirepass)\s*=\s*)` +
	`(?:\\["'].*?(?:\\["']|$)|'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|(?:\\.|[^\s\\])+\\?)\S*`)

// urlParts finds where net/url quotes a part of a URL that it could not parse,
// which is a part of the password when that was not percent-encoded.
var urlParts = regexp.MustCompile(`(invalid port |invalid URL escape |invalid character )("(?:[^"\\]|\\.)*"?)`)

// Redact takes the credentials out of a text that may quote a connection
// string, as the errors of drivers do: the password of a URL and the values of
// password keywords. User, host and database stay, for they are what an
// operator needs. Where a text leaves in doubt how far a secret goes, Redact
// takes too much rather than too little.
func Redact(text string) string {
	text = redactURLs(text)
	text = urlParts.ReplaceAllString(text, `${1}"`+masked+`"`)
	return keyword.ReplaceAllString(text, "${1}"+masked)
}

// redactURLs masks the password in every scheme://user:password@host. A
// password that was not percent-encoded can hold any character, also @, / and
// :, so that it is taken to reach from the first colon to the last @.
func redactURLs(text string) string {
	var out strings.Builder
	for {
		i := strings.Index(text, "://")
		if i < 0 {
			out.WriteString(text)
			return out.String()
		}
		scheme := i
		for scheme > 0 && schemeByte(text[scheme-1]) {
			scheme--
		}
		quote := byte(0)
		if scheme > 0 {
			quote = text[scheme-1]
		}
		i += len("://")
		out.WriteString(text[:i])
		text = text[i:]

		end := urlEnd(text, quote)
		url := text[:end]
		colon, at := strings.IndexByte(url, ':'), strings.LastIndexByte(url, '@')
		switch {
		case colon >= 0 && at > colon:
			out.WriteString(url[:colon+1] + masked)
			text = text[at:]
		case colon >= 0 && at < 0 && !hostAndPort(url):
			// A space in the password ended the URL too early, or the host is
			// missing.
			out.WriteString(url[:colon+1] + masked)
			text = text[end:]
			if i := strings.IndexByte(text, '@'); i >= 0 {
				text = text[i:]
			}
		default:
			out.WriteString(url)
			text = text[end:]
		}
	}
}

// urlEnd is where a URL ends: at the quote it began with, else at white space.
func urlEnd(text string, quote byte) int {
	if quote == '"' || quote == '\'' || quote == '`' {
		for i := 0; i < len(text); i++ {
			switch {
			case text[i] == '\\' && quote != '`':
				i++
			case text[i] == quote:
				return i
			}
		}
		return len(text)
	}
	if i := strings.IndexAny(text, " \t\r\n"); i >= 0 {
		return i
	}
	return len(text)
}

// hostAndPort reports whether what follows the scheme is a list of hosts with
// numeric ports, and no part of a user and password.
func hostAndPort(url string) bool {
	if i := strings.IndexAny(url, "/?#"); i >= 0 {
		url = url[:i]
	}
	for host := range strings.SplitSeq(url, ",") {
		if i := strings.LastIndexByte(host, ']'); i >= 0 && strings.HasPrefix(host, "[") {
			host = host[i+1:] // an IPv6 address
		}
		_, port, _ := strings.Cut(host, ":")
		// A sentence around the URL can leave its punctuation at the end.
		if strings.Trim(strings.TrimRight(port, "`"+`:.;)]>"'`), "0123456789") != "" {
			return false
		}
	}
	return true
}

func schemeByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'
}
