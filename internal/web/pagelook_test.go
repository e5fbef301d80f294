package web

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stagedoor/walrelay/internal/testbrowser"
)

// faintJS finds text whose contrast with what is behind it is less than WCAG's
// level AA asks for: 4.5 to 1, and 3 to 1 for large text.
const faintJS = `(() => {
	const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
	const behind = (el) => {
		for (; el; el = el.parentElement) {
			const style = getComputedStyle(el);
			const image = style.backgroundImage.match(/rgb\([^)]*\)/);
			if (image) return parse(image[0]);
			const c = parse(style.backgroundColor);
			if (c.length === 3 || c[3] === 1) return c;
		}
		return [255, 255, 255];
	};
	const faint = [];
	for (const el of document.querySelectorAll('body *')) {
		const text = [...el.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join('').trim();
		if (!text || !el.checkVisibility({visibilityProperty: true}) || el.closest('.visually-hidden, noscript, canvas')) continue;
		const style = getComputedStyle(el);
		const a = light(parse(style.color)), b = light(behind(el));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
		if (ratio < (large ? 3 : 4.5)) faint.push(text.slice(0, 40) + ' ' + ratio.toFixed(2));
	}
	return faint;
})()`

// unnamedJS finds what a screen reader could not name, and what is wrong with the
// outline of the page.
const unnamedJS = `(() => {
	const wrong = [];
	const name = (el) => el.getAttribute('aria-label') ||
		(el.getAttribute('aria-labelledby') || '').split(' ').map((id) => document.getElementById(id)?.innerText ?? '').join('') || el.innerText;
	for (const el of document.querySelectorAll('a, button, section, nav, table, [tabindex="0"], [role]')) {
		if (el.checkVisibility() && !name(el)?.trim()) wrong.push('no name: ' + el.outerHTML.slice(0, 80));
	}
	for (const el of document.querySelectorAll('svg, canvas')) {
		if (!el.closest('[aria-hidden], [role=slider]')) wrong.push('a picture that is read: ' + el.outerHTML.slice(0, 80));
	}
	for (const [selector, n] of [['main', 1], ['h1', 1], ['header', 1], ['footer', 1], ['[aria-live]', 1], ['html[lang]', 1]]) {
		if (document.querySelectorAll(selector).length !== n) wrong.push(selector + ' is there ' + document.querySelectorAll(selector).length + ' times');
	}
	const ids = [...document.querySelectorAll('[id]')].map((el) => el.id);
	for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push('two of ' + id);
	return wrong;
})()`

// wideJS is what does not fit into the width of the screen.
const wideJS = `[...document.querySelectorAll('body *')].filter((el) => !el.closest('.scroll, .visually-hidden, .u-wrap') && el.checkVisibility() &&
	el.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((el) => el.outerHTML.slice(0, 80))`

// everybodyCanRead looks at what is true of the page in each of its states, on a
// small and on a large screen, in the light and in the dark.
func everybodyCanRead(t *testing.T, tab *testbrowser.Tab) {
	t.Helper()
	for _, screen := range []testbrowser.Screen{testbrowser.Phone, dark(testbrowser.Phone), testbrowser.Desktop} {
		tab.Look(screen)
		name := fmt.Sprintf("%d wide, dark %t", screen.Width, screen.Dark)
		for what, js := range map[string]string{"too faint": faintJS, "too wide": wideJS, "for a screen reader": unnamedJS} {
			if wrong := testbrowser.Value[[]string](tab, js); len(wrong) > 0 {
				t.Errorf("%s, %s:\n%s", name, what, strings.Join(wrong, "\n"))
			}
		}
		if wide := testbrowser.Value[int64](tab, "document.scrollingElement.scrollWidth"); wide > screen.Width {
			t.Errorf("%s: the page is %d wide", name, wide)
		}
	}
	// Nothing is loaded from elsewhere.
	for _, url := range testbrowser.Value[[]string](tab, "performance.getEntriesByType('resource').map((e) => e.name)") {
		if !strings.HasPrefix(url, testbrowser.Value[string](tab, "location.origin")+"/") {
			t.Errorf("the page loads %s", url)
		}
	}
}

// icon is the level that the icon of the page shows, by the text of its picture.
func icon(t *testing.T, tab *testbrowser.Tab) string {
	t.Helper()
	link := testbrowser.Value[string](tab, "decodeURIComponent(document.querySelector('link[rel=icon]').href)")
	mark := testbrowser.Value[string](tab, "document.getElementById('icon').getAttribute('d')")
	if !strings.HasPrefix(link, "data:image/svg+xml,") || mark == "" || !strings.Contains(link, mark) {
		t.Errorf("the icon is %s, the mark %q", link, mark)
	}
	return mark
}
