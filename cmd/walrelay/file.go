package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"
)

// fileSettings are the settings of one YAML mapping: the values of each key.
type fileSettings map[string][]given

// settingsFile reads the settings of a YAML file. It works on yaml's nodes, so
// that each value and each complaint knows its line.
type settingsFile struct {
	path  string
	known []string        // the settings, by name
	list  map[string]bool // those that take several values
}

// parse reads the whole file. A file without any setting is fine.
func (f *settingsFile) parse(data []byte) (fileSettings, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return fileSettings{}, nil
	}
	if err != nil {
		return nil, f.syntaxError(err)
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return nil, f.errorf(second.Line, "a second document starts here; want one")
	} else if !errors.Is(err, io.EOF) {
		return nil, f.syntaxError(err)
	}
	root := document.Content[0]
	if isNull(root) {
		return fileSettings{}, nil
	}
	return f.mapping(root)
}

// mapping reads the settings of one relay.
func (f *settingsFile) mapping(node *yaml.Node) (fileSettings, error) {
	if node.Kind != yaml.MappingNode {
		return nil, f.errorf(node.Line, "want settings as KEY: VALUE, such as stream: jobs")
	}
	settings := fileSettings{}
	first := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], deref(node.Content[i+1])
		if err := f.checkKey(key); err != nil {
			return nil, err
		}
		name := key.Value
		if line, ok := first[name]; ok {
			return nil, f.errorf(key.Line, "the key %q stands on line %d already", name, line)
		}
		first[name] = key.Line
		values, err := f.values(name, value)
		if err != nil {
			return nil, err
		}
		settings[name] = values
	}
	return settings, nil
}

// checkKey refuses a key that is no setting.
func (f *settingsFile) checkKey(key *yaml.Node) error {
	if key.Kind != yaml.ScalarNode {
		return f.errorf(key.Line, "want the name of a setting as the key, such as stream: jobs")
	}
	switch key.Value {
	case "relays":
		return f.errorf(key.Line, "relays is not supported by this release: a file holds the settings of one relay, at its top level; start one process with its own file for each")
	case "config":
		return f.errorf(key.Line, "config cannot stand in the file itself: use the flag or %s", envName("config"))
	}
	for _, name := range f.known {
		if name == key.Value {
			return nil
		}
	}
	name, _ := nearest(key.Value, f.known)
	return f.errorf(key.Line, "unknown key %q; the nearest known key is %q", key.Value, name)
}

// values reads what stands behind a key. Scalars are taken as they are written,
// so that a value means the same here as on the command line.
func (f *settingsFile) values(name string, node *yaml.Node) ([]given, error) {
	switch {
	case isNull(node):
		return nil, f.errorf(node.Line, "%s has no value: remove the line, or write %s: \"\" for an empty one", name, name)
	case !f.list[name] && node.Kind != yaml.ScalarNode:
		return nil, f.errorf(node.Line, "%s wants a single value, not %s", name, kindName(node))
	case !f.list[name]:
		return []given{f.given(node.Value, node.Line)}, nil
	}
	var values []given
	switch node.Kind {
	case yaml.SequenceNode:
		for _, item := range node.Content {
			item = deref(item)
			if item.Kind != yaml.ScalarNode || isNull(item) {
				return nil, f.errorf(item.Line, "%s wants NAME=COLUMN as the items of its list, not %s", name, kindName(item))
			}
			values = append(values, f.given(item.Value, item.Line))
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, column := node.Content[i], deref(node.Content[i+1])
			if key.Kind != yaml.ScalarNode || column.Kind != yaml.ScalarNode || isNull(column) {
				return nil, f.errorf(key.Line, "%s wants a column behind each name, such as outbox_id: id", name)
			}
			if strings.Contains(key.Value, "=") {
				return nil, f.errorf(key.Line, "%s: the name of a field cannot hold an equals sign, and %q does", name, key.Value)
			}
			values = append(values, f.given(key.Value+"="+column.Value, key.Line))
		}
	default:
		return nil, f.errorf(node.Line, "%s wants a list of NAME=COLUMN, or a mapping of NAME to COLUMN, not %s", name, kindName(node))
	}
	if len(values) == 0 {
		return nil, f.errorf(node.Line, "%s is empty: remove it for the default, or name at least one", name)
	}
	return values, nil
}

func (f *settingsFile) given(text string, line int) given {
	return given{text: text, origin: fmt.Sprintf("%s, line %d", f.path, line)}
}

func (f *settingsFile) errorf(line int, format string, args ...any) error {
	return usagef("%s, line %d: %s", f.path, line, fmt.Sprintf(format, args...))
}

// syntaxError is the parser's, which names the line itself.
func (f *settingsFile) syntaxError(err error) error {
	return usagef("%s, %s", f.path, strings.TrimPrefix(err.Error(), "yaml: "))
}

// deref follows an alias to what it stands for.
func deref(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

func kindName(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case isNull(node):
		return "nothing"
	}
	return "a single value"
}

// nearest returns the name with the fewest letters to change, and how many.
func nearest(s string, names []string) (name string, distance int) {
	distance = -1
	for _, n := range names {
		if d := editDistance(s, n); distance < 0 || d < distance {
			name, distance = n, d
		}
	}
	return name, distance
}

// editDistance counts the letters to insert, delete or replace.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
