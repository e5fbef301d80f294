package main

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// RedisURL is the address of a Redis that was looked at already. It may hold a
// password, and prints without.
type RedisURL struct{ url string }

// URL is the whole address, for whoever connects.
func (u RedisURL) URL() string { return u.url }

// String is the address without user, password and options.
func (u RedisURL) String() string {
	options, err := redis.ParseURL(u.url)
	if err != nil {
		return ""
	}
	scheme, _, _ := strings.Cut(u.url, ":")
	return scheme + "://" + options.Addr + " database " + strconv.Itoa(options.DB)
}

// GoString keeps the password from %#v.
func (u RedisURL) GoString() string { return u.String() }

// parseRedis gives a reason of its own: the library's quotes parts of the URL,
// and where it cannot be parsed, any part may be the password.
func parseRedis(s string) (RedisURL, error) {
	const want = "want redis://[USER:PASSWORD@]HOST:PORT/DB, rediss://... for TLS, or unix:///PATH?db=DB, with special characters of the password percent-encoded"
	u, err := url.Parse(s)
	if err != nil || !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme) || u.Fragment != "" {
		return RedisURL{}, errors.New(want)
	}
	options, err := redis.ParseURL(s)
	switch {
	case err != nil && strings.Contains(err.Error(), "unexpected option"):
		return RedisURL{}, errors.New("an option after the question mark is not known; " + want)
	case err != nil && u.RawQuery != "":
		return RedisURL{}, errors.New("the database or an option after the question mark has a wrong value; " + want)
	case err != nil:
		return RedisURL{}, errors.New(want)
	case options.DB < 0:
		return RedisURL{}, errors.New("the database number is negative; " + want)
	}
	return RedisURL{url: s}, nil
}
