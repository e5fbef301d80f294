package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker, with -X main.version=1.2.3 and -X main.commit=abcdef.
var (
	version string
	commit  string
)

// versionCmd prints what this binary was built from.
type versionCmd struct{}

// Run is called by main.
func (versionCmd) Run(_ context.Context, p *process) error {
	info, _ := debug.ReadBuildInfo()
	v, c := buildVersion(version, commit, info)
	_, err := fmt.Fprintf(p.stdout, "walrelay %s (commit %s, %s %s/%s)\n", v, c, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// buildVersion is what the linker was told, else what Go recorded.
func buildVersion(version, commit string, info *debug.BuildInfo) (v, c string) {
	if info == nil {
		return cmp.Or(version, "devel"), cmp.Or(commit, "unknown")
	}
	var revision, modified string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-dirty"
		}
	}
	if revision != "" {
		revision += modified
	}
	recorded := info.Main.Version
	if recorded == "(devel)" {
		recorded = ""
	}
	return cmp.Or(version, recorded, "devel"), cmp.Or(commit, revision, "unknown")
}
