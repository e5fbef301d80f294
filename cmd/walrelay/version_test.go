package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionIsTheLinkersElseWhatGoRecorded(t *testing.T) {
	recorded := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	for _, tt := range []struct {
		name, version, commit   string
		info                    *debug.BuildInfo
		wantVersion, wantCommit string
	}{
		{"the linker's", "1.0.0", "def", recorded, "1.0.0", "def"},
		{"what Go recorded", "", "", recorded, "v1.2.3", "abc-dirty"},
		{"a build without version control", "", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel", "unknown"},
		{"nothing recorded", "", "", nil, "devel", "unknown"},
	} {
		if v, c := buildVersion(tt.version, tt.commit, tt.info); v != tt.wantVersion || c != tt.wantCommit {
			t.Errorf("%s: %s, %s; want %s, %s", tt.name, v, c, tt.wantVersion, tt.wantCommit)
		}
	}
}

func TestVersionNeedsNoSettings(t *testing.T) {
	broken := []string{"WALRELAY_SLOT=Not a slot", "WALRELAY_CONFIG=/nowhere", "WALRELAY_LOG_LEVEL=loud"}
	if code, stdout, stderr := walrelay(broken, "version"); code != exitDone || stdout == "" || stderr != "" {
		t.Errorf("exit code %d, printed %q and %q", code, stdout, stderr)
	}
}
