package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// sources finds the settings that are not on the command line: in the
// environment, else in the settings file. It is kong's resolver, and not kong's
// own handling of the environment, whose messages repeat the values.
type sources struct {
	environ map[string]string
	file    fileSettings
	loaded  bool
}

func newSources(environ []string) *sources {
	s := &sources{environ: map[string]string{}}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			s.environ[name] = value
		}
	}
	return s
}

// Validate is called by kong; the file is checked when it is read.
func (s *sources) Validate(*kong.Application) error { return nil }

// Resolve is called by kong for each flag that is not on the command line.
func (s *sources) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	// version tells what it is also where the settings are broken.
	if command := ctx.Selected(); command == nil || command.Name == "version" || !isSetting(flag) {
		return nil, nil
	}
	if !s.loaded {
		if err := s.load(ctx); err != nil {
			return nil, err
		}
		s.loaded = true
	}
	name := envName(flag.Name)
	if text, ok := s.environ[name]; ok {
		return splitVariable(flag, text, name), nil
	}
	if values, ok := s.file[flag.Name]; ok {
		return values, nil
	}
	return nil, nil
}

// splitVariable makes the values of a setting that takes several.
func splitVariable(flag *kong.Flag, text, origin string) []given {
	if !flag.IsSlice() {
		return []given{{text: text, origin: origin}}
	}
	var values []given
	for part := range strings.SplitSeq(text, ",") {
		values = append(values, given{text: strings.TrimSpace(part), origin: origin})
	}
	return values
}

// load reads the settings file that the command line or the environment names.
func (s *sources) load(ctx *kong.Context) error {
	file := &settingsFile{list: map[string]bool{}}
	path, origin := s.environ[envName("config")], " ("+envName("config")+")"
	for _, flag := range settings(ctx.Model) {
		if flag.Name == "config" {
			if text, ok := ctx.FlagValue(flag).(string); ok && text != "" {
				path, origin = text, ""
			}
			continue
		}
		file.known = append(file.known, flag.Name)
		file.list[flag.Name] = flag.IsSlice()
	}
	if path == "" {
		return nil
	}
	file.path = path
	data, err := os.ReadFile(path)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return usagef("--config %s%s: %v", quoteShort(path), origin, err)
	}
	s.file, err = file.parse(data)
	return err
}

// misspelt returns the variables of the environment that look like a setting
// and are none. It is no error: other programs put variables there too, such as
// Kubernetes for a service that is called walrelay.
func (s *sources) misspelt(app *kong.Application) []string {
	var known []string
	for _, flag := range settings(app) {
		known = append(known, envName(flag.Name))
	}
	var hints []string
	for name := range s.environ {
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(known, name) {
			continue
		}
		if meant, distance := nearest(name, known); distance <= 2 {
			hints = append(hints, name+" is not a setting; "+meant+" is")
		}
	}
	slices.Sort(hints)
	return hints
}

// settings are the flags that are settings, too, in the environment and in the
// file: those that every command takes.
func settings(app *kong.Application) []*kong.Flag {
	var flags []*kong.Flag
	for _, flag := range app.Flags {
		if isSetting(flag) {
			flags = append(flags, flag)
		}
	}
	return flags
}

// isSetting tells a setting from a command's own flags, which have no group.
func isSetting(flag *kong.Flag) bool { return flag.Group != nil }
