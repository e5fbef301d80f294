package web

import (
	"regexp"
	"strings"
	"testing"
)

// A browser keeps the page to itself, with every file of it, and the page names
// no file that is not there.
func TestTheFilesOfThePage(t *testing.T) {
	s, _ := newServer(config())
	run(t, s)
	index := ask(t, "GET", "http://"+s.Addr()+"/")
	if !strings.Contains(index.body, `data-assets="`+assetsVersion+`"`) {
		t.Error("the page does not know its version")
	}
	kinds := map[string]string{"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "LICENSE": "text/plain; charset=utf-8"}
	files := regexp.MustCompile(`(?:href|src)="(page/[^"]+)"`).FindAllStringSubmatch(index.body, -1)
	if len(files) < 6 {
		t.Errorf("the page has the files %v", files)
	}
	answers := map[string]answer{"/": index, "/events": ask(t, "HEAD", "http://"+s.Addr()+"/events")}
	for _, f := range files {
		got := ask(t, "GET", "http://"+s.Addr()+"/"+f[1])
		answers[f[1]] = got
		name := f[1][strings.LastIndexAny(f[1], "./")+1:]
		if got.code != 200 || got.header.Get("Content-Type") != kinds[name] || got.body != string(read(f[1])) {
			t.Errorf("%s: %d, %s", f[1], got.code, got.header.Get("Content-Type"))
		}
	}
	if !strings.Contains(answers["page/uplot/LICENSE"].body, "The MIT License") {
		t.Error("uPlot is there without its licence")
	}
	for name, got := range answers {
		for header, want := range map[string]string{
			"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		} {
			if got.header.Get(header) != want {
				t.Errorf("%s: %s is %q", name, header, got.header.Get(header))
			}
		}
	}
	for _, rule := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy+";", rule+";") {
			t.Errorf("the policy has no %s", rule)
		}
	}
}
