package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// pageFiles are the status page: plain HTML, CSS and JavaScript, with uPlot for
// its charts, each as it is served.
//
//go:embed page
var pageFiles embed.FS

// policy lets the page load its own files and listen to its own server, and
// nothing else. The icon is made by the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// assetsVersion tells the pages of two releases apart.
var assetsVersion = func() string {
	sum := sha256.New()
	for _, name := range assets() {
		sum.Write(read(name))
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}()

// assets are the files of the page, by their paths in this directory.
func assets() (names []string) {
	err := fs.WalkDir(pageFiles, "page", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		panic(err) // it is in the binary
	}
	return names
}

func read(name string) []byte {
	text, err := pageFiles.ReadFile(name)
	if err != nil {
		panic(err) // it is in the binary
	}
	return text
}

// kinds are given here, whatever the machine's own table says.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
}

// handlePage adds the page at / with its files and events. Links in it are
// relative, so that it also works behind a proxy under a path of its own.
func handlePage(mux *http.ServeMux, b *board) {
	for _, name := range assets() {
		kind, ok := kinds[path.Ext(name)]
		if !ok {
			kind = "text/plain; charset=utf-8"
		}
		text := read(name)
		at := "/" + name
		if name == "page/index.html" {
			at = "/{$}"
			text = []byte(strings.Replace(string(text), "ASSETS", assetsVersion, 1))
		}
		mux.HandleFunc(at, func(w http.ResponseWriter, r *http.Request) {
			guard(w.Header())
			w.Header().Set("Content-Type", kind)
			if r.Method != http.MethodHead {
				_, _ = w.Write(text) // who went away misses nothing
			}
		})
	}
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		guard(w.Header())
		b.ServeHTTP(w, r)
	})
}

// guard has a browser keep the page to itself.
func guard(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY") // for what does not know frame-ancestors
}
