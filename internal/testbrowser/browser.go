// Package testbrowser has a test look at a page as somebody does: in Chromium,
// without a window. A browser is started once for several tests, each of which
// opens a tab of its own.
package testbrowser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait. It measures nothing: it is for what should never
// happen.
const patience = time.Minute

// Env names the browser's program; without it, one of Programs is taken.
const Env = "WALRELAY_TEST_CHROMIUM"

// Programs are looked for in this order. The first is Chromium without what
// makes windows, which starts with a third of the work.
var Programs = []string{"chromium-headless-shell", "chromium"}

// Browser is one process of Chromium, with a profile of its own.
type Browser struct{ ctx context.Context }

// Start starts a browser, which ends with the test and its subtests. A machine
// without one is an error: a page that nobody looked at is not tested.
func Start(t testing.TB) *Browser {
	t.Helper()
	program, err := find()
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, leave := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		leave()
		end()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	return &Browser{ctx}
}

func find() (string, error) {
	if program := os.Getenv(Env); program != "" {
		return program, nil
	}
	for _, name := range Programs {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", fmt.Errorf("there is no Chromium: install the package %s (make deps), or name a program in %s", Programs[0], Env)
}

// Tab is one page that is open. It fails its test for whatever the browser
// complains of, such as an error of a script or something that the page's
// Content-Security-Policy forbids.
type Tab struct {
	t   testing.TB
	ctx context.Context

	mu         sync.Mutex
	complaints []string
	expected   []string
}

// Screen is what a page is looked at on.
type Screen struct {
	Width, Height int64
	Dark          bool
}

// The screens that matter.
var (
	Phone   = Screen{Width: 320, Height: 640}
	Desktop = Screen{Width: 1280, Height: 900}
)

// Open opens a page. What the browser may complain of is given by a part of its
// words.
func (b *Browser) Open(t testing.TB, url string, screen Screen, expected ...string) *Tab {
	t.Helper()
	tab := &Tab{t: t, expected: expected}
	ctx, leave := chromedp.NewContext(b.ctx, chromedp.WithListener(tab.listen))
	tab.ctx = ctx
	t.Cleanup(func() {
		leave()
		for _, c := range tab.complained() {
			t.Errorf("the browser complains: %s", c)
		}
	})
	if err := chromedp.Do(ctx); err != nil { // a tab ends with the context of its first use
		t.Fatalf("a new tab: %v", err)
	}
	tab.Look(screen)
	tab.do(chromedp.Navigate(url))
	return tab
}

// Look changes the screen.
func (tab *Tab) Look(screen Screen) {
	tab.t.Helper()
	scheme := "light"
	if screen.Dark {
		scheme = "dark"
	}
	tab.do(chromedp.EmulateViewport(screen.Width, screen.Height), func(ctx context.Context, to *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, to, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme},
			{Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		return chromedp.Void{}, err
	})
}

// listen notes what the browser complains of.
func (tab *Tab) listen(event any) {
	text := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Text
		if thrown := e.ExceptionDetails.Exception; thrown != nil {
			text += " " + thrown.Description
		}
	case *runtime.EventConsoleAPICalled:
		if !slices.Contains([]string{"error", "warning", "assert"}, string(e.Type)) {
			return
		}
		text = "console"
		for _, arg := range e.Args {
			text += fmt.Sprintf(" %s%s", arg.Value, arg.Description)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level != "error" && e.Entry.Level != "warning" {
			return
		}
		text = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
	default:
		return
	}
	tab.mu.Lock()
	defer tab.mu.Unlock()
	for _, part := range tab.expected {
		if strings.Contains(text, part) {
			return
		}
	}
	tab.complaints = append(tab.complaints, text)
}

func (tab *Tab) complained() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	return tab.complaints
}

func (tab *Tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tab.t.Fatalf("the browser: %v", err)
	}
}

// Press presses a key on what has the focus; see package kb of chromedp.
func (tab *Tab) Press(key string) {
	tab.t.Helper()
	tab.do(chromedp.KeyEvent(key))
}

// Value is what an expression of JavaScript gives.
func Value[T any](tab *Tab, expression string) T {
	tab.t.Helper()
	v, err := value[T](tab, expression)
	if err != nil {
		tab.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func value[T any](tab *Tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression))
}

// Text is what somebody reads in the first element that a selector names.
func (tab *Tab) Text(selector string) string {
	tab.t.Helper()
	return Value[string](tab, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// Becomes waits until an expression of JavaScript is true, also while the page
// is loaded anew.
func (tab *Tab) Becomes(expression string) {
	tab.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		is, err := value[bool](tab, "Boolean("+expression+")")
		if is {
			return
		}
		if time.Now().After(deadline) {
			tab.t.Fatalf("%s did not become true (%v); the page says:\n%s", expression, err, tab.Text("body"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Says waits until an element has these words in it.
func (tab *Tab) Says(selector, words string) {
	tab.t.Helper()
	tab.Becomes(fmt.Sprintf("(document.querySelector(%q)?.innerText ?? '').includes(%q)", selector, words))
}

// Picture is a PNG of the whole page.
func (tab *Tab) Picture() []byte {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		tab.t.Fatalf("a picture of the page: %v", err)
	}
	return png
}
