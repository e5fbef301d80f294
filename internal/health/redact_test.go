package health

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

func TestRedact(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"connection refused", "connection refused"},
		// URLs
		{"postgres://user:secret@host", "postgres://user:xxxxx@host"},
		{"dial postgres://user:secret@host/db: refused", "dial postgres://user:xxxxx@host/db: refused"},
		{"redis://:secret@host:6379/0", "redis://:xxxxx@host:6379/0"},
		{"rediss://u:secret@a:1,b:2/0 and http://v:secret@c", "rediss://u:xxxxx@a:1,b:2/0 and http://v:xxxxx@c"},
		{"POSTGRES://user:secret@host", "POSTGRES://user:xxxxx@host"},
		{`parse "postgres://user:se cret@host": invalid`, `parse "postgres://user:xxxxx@host": invalid`},
		{`parse "postgres://user:se\"cret@host": invalid`, `parse "postgres://user:xxxxx@host": invalid`},
		{"parse `postgres://user:se\\ cret@host`: invalid", "parse `postgres://user:xxxxx@host`: invalid"},
		{`wrong value 'postgres://user:se'cret@host'`, `wrong value 'postgres://user:xxxxx@host'`},
		{"postgres://user:se cret@host failed", "postgres://user:xxxxx@host failed"},
		{"postgres://user:s@e@cret@host", "postgres://user:xxxxx@host"},
		{"postgres://user:secret:secret@host", "postgres://user:xxxxx@host"},
		{"postgres://user:secret/secret@host", "postgres://user:xxxxx@host"},
		{"postgres://user:secret", "postgres://user:xxxxx"},
		{"postgres://user:1secret?x", "postgres://user:xxxxx"},
		{"postgres://user:secret://secret@host", "postgres://user:xxxxx@host"},
		{`invalid port ":secret" after host`, `invalid port "xxxxx" after host`},
		{`invalid URL escape "%se"`, `invalid URL escape "xxxxx"`},
		{`invalid character "s" in host name`, `invalid character "xxxxx" in host name`},
		{`cut off: "postgres://user:secret@host`, `cut off: "postgres://user:xxxxx@host`},
		{`parse "postgres://user:s@e cret@host": invalid`, `parse "postgres://user:xxxxx@host": invalid`},
		{`parse "postgres://user:1 2@host": invalid`, `parse "postgres://user:xxxxx@host": invalid`},
		{`parse "postgres://user:s@e\" cret@host": invalid`, `parse "postgres://user:xxxxx@host": invalid`},
		{"parse `postgres://user:secret@host\\`: u@h", "parse `postgres://user:xxxxx@host\\`: u@h"},
		{`cut off: "postgres://user:s@e cret@host`, `cut off: "postgres://user:xxxxx@host`},
		{"redis://:se cret@host", "redis://:xxxxx@host"},
		{"redis://u:se]cret", "redis://u:xxxxx"},
		{"redis://u:se]1", "redis://u:xxxxx"},
		// what is no secret stays
		{"unix:///run/a:b.sock", "unix:///run/a:b.sock"},
		{`dial "redis://host:6379": u@h refused`, `dial "redis://host:6379": u@h refused`},
		{`dial "redis://u@host:6379": a:b@c refused`, `dial "redis://u@host:6379": a:b@c refused`},
		{"postgres://user@host:5432/db", "postgres://user@host:5432/db"},
		{"redis://host:6379/0", "redis://host:6379/0"},
		{"redis://host:6379: refused", "redis://host:6379: refused"},
		{"(see http://host:9476) or user@mail", "(see http://host:9476) or user@mail"},
		{"postgres://a:1,b:2/db?target_session_attrs=any", "postgres://a:1,b:2/db?target_session_attrs=any"},
		{"redis://[::1]:6379/0 by u@h", "redis://[::1]:6379/0 by u@h"},
		{"unix:///run/redis.sock", "unix:///run/redis.sock"},
		{`FATAL: password authentication failed for user "relay"`, `FATAL: password authentication failed for user "relay"`},
		{"WRONGPASS invalid username-password pair or user is disabled.", "WRONGPASS invalid username-password pair or user is disabled."},
		// keywords
		{"host=h password=secret dbname=d", "host=h password=xxxxx dbname=d"},
		{"host=h PASSWORD = secret", "host=h PASSWORD = xxxxx"},
		{"password='sec ret' dbname=d", "password=xxxxx dbname=d"},
		{`password='sec\' ret' dbname=d`, "password=xxxxx dbname=d"},
		{`"host=h password='sec\\'ret' dbname=d"`, `"host=h password=xxxxx dbname=d"`},
		{`password=sec\ ret dbname=d`, "password=xxxxx dbname=d"},
		{"password='secret and no end", "password=xxxxx"},
		{"sslpassword=secret&sslmode=off x", "sslpassword=xxxxx x"},
		{"PGPASSWORD=secret walrelay run", "PGPASSWORD=xxxxx walrelay run"},
		{"passwd=secret", "passwd=xxxxx"},
		{`"host=h password=\"sec ret\" dbname=d"`, `"host=h password=xxxxx dbname=d"`},
		{`password="sec ret" dbname=d`, "password=xxxxx dbname=d"},
		{"postgres://h/db?password=secret&user=u next", "postgres://h/db?password=xxxxx next"},
		{"postgres://u:secret@h/db?sslpassword=secret", "postgres://u:xxxxx@h/db?sslpassword=xxxxx"},
	} {
		got := Redact(c.text)
		if got != c.want {
			t.Errorf("%s\nbecame %s\nwant   %s", c.text, got, c.want)
		}
		if again := Redact(got); again != got {
			t.Errorf("%s\nbecame %s the second time", got, again)
		}
	}
}

// What the libraries make of connection strings that they cannot parse.
func TestRedactErrorsOfTheLibraries(t *testing.T) {
	for _, password := range []string{
		"s3cret", "s3 cr3t", "s3/cr3t", "s3#cr3t", "s3?cr3t", "s3@cr3t", "s3:cr3t", "%zzs3cr3t", `s3"cr3t`, "s3'cr3t", `s3\cr3t`, "s3\ncr3t", "s3[cr3t",
	} {
		pgURL := "postgres://relay:" + password + "@db.example:port/shop"
		redisURL := "redis://relay:" + password + "@cache.example:port/0"
		keywords := "host=db user=relay password='" + strings.ReplaceAll(password, "'", `\'`) + "' port=x"
		var errs []error
		_, err := pgx.ParseConfig(pgURL)
		errs = append(errs, err)
		_, err = pgx.ParseConfig(keywords)
		errs = append(errs, err)
		_, err = redis.ParseURL(redisURL)
		errs = append(errs, err)
		_, err = url.Parse(pgURL)
		errs = append(errs, err)
		errs = append(errs, fmt.Errorf("cannot use %q", pgURL), fmt.Errorf("cannot use %s", pgURL), fmt.Errorf("cannot use %q", keywords))
		for _, err := range errs {
			if err == nil {
				t.Errorf("%q was parsed", password)
				continue
			}
			got := Redact(err.Error())
			for _, part := range []string{"cr3t", "s3"} {
				if strings.Contains(got, part) {
					t.Errorf("%q leaks from\n\t%s\nas\n\t%s", password, err, got)
					break
				}
			}
		}
	}
}

// FuzzRedact: whatever a password holds, it is gone from a quoted URL and from
// a quoted keyword, and what stood before it stays.
func FuzzRedact(f *testing.F) {
	for _, password := range []string{"s", "a b", `a"b`, "a@b", "a:b/c", `a\b`, "'", "é\n", "://"} {
		f.Add(password)
	}
	f.Fuzz(func(t *testing.T, password string) {
		quoted := strconv.Quote("postgres://relay:" + password + "@db/shop")
		if got, want := Redact("cannot parse "+quoted+": bad"), `cannot parse "postgres://relay:xxxxx@db/shop": bad`; got != want {
			t.Errorf("%s\nbecame %s", quoted, got)
		}
		escaped := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
		if got, want := Redact("host=db password='"+escaped+"' port=1"), "host=db password=xxxxx port=1"; got != want {
			t.Errorf("%q in a keyword became %s", password, got)
		}
	})
}
