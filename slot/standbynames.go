package slot

import "strings"

// matchStandbyName looks for the entry of synchronous_standby_names that
// matches an application name, as PostgreSQL does: without regard to ASCII
// case, and with * for every name.
//
// The server has checked the setting, so all that matters is which of its words
// are names. Syntax of a later version is read as more names: better refuse
// once too often than slow every writer.
func matchStandbyName(setting, application string) (name string, ok bool) {
	for _, name := range standbyNames(setting) {
		if name == "*" || asciiLower(name) == asciiLower(application) {
			return name, true
		}
	}
	return "", false
}

// standbyNames lists the names of a synchronous_standby_names setting:
//
//	[FIRST | ANY] num ( name, … )     name, …
//
// A name is a word, a number, a * or anything in double quotes, where FIRST and
// ANY in quotes are names as well.
func standbyNames(setting string) []string {
	var names []string
	number := "" // read, and either a name or the number before a parenthesis
	flush := func() {
		if number != "" {
			names = append(names, number)
		}
		number = ""
	}
	for s := setting; s != ""; {
		switch c := s[0]; {
		case c == '(':
			number = ""
			s = s[1:]
		case c == '"':
			flush()
			var name string
			name, s = quotedName(s[1:])
			names = append(names, name)
		case c == '*':
			flush()
			names = append(names, "*")
			s = s[1:]
		case isDigit(c):
			flush()
			number, s = span(s, isDigit)
		case isWord(c):
			flush()
			var word string
			word, s = span(s, isWord)
			if lower := asciiLower(word); lower != "first" && lower != "any" {
				names = append(names, word)
			}
		case isSpace(c):
			s = s[1:]
		default:
			flush()
			s = s[1:]
		}
	}
	flush()
	return names
}

// quotedName reads up to the closing quote. A doubled quote is one.
func quotedName(s string) (name, rest string) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '"')
		if i < 0 {
			b.WriteString(s)
			return b.String(), ""
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		if !strings.HasPrefix(s, `"`) {
			return b.String(), s
		}
		b.WriteByte('"')
		s = s[1:]
	}
}

// span cuts off the bytes at the front of s that are in the class.
func span(s string, class func(byte) bool) (in, rest string) {
	i := 0
	for i < len(s) && class(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// asciiLower is PostgreSQL's idea of case for names of this kind. It goes by
// bytes, since a setting need not be UTF-8.
func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
