// Package relayprocess runs the walrelay program in a process of its own, as
// anybody would run it, for programs that show or measure it.
package relayprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// program is what Build builds.
const program = "github.com/stagedoor/walrelay/cmd/walrelay"

// Config says how a relay is run.
type Config struct {
	Binary   string   // path of the program
	Dir      string   // directory for its log
	Args     []string // command and flags, without --http
	Postgres string   // connection string
	Redis    string   // URL
}

// Relay is the walrelay program. One process runs at a time.
type Relay struct {
	binary string
	args   []string
	env    []string
	http   string // its address
	log    string // its log's path

	cmd  *exec.Cmd
	done chan struct{} // closed when the process was reaped
	err  error         // how it ended; valid once done is closed
}

// Build builds the program into dir and returns its path. It needs the go command
// and this module's directory. Flags are those of go build.
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	binary := filepath.Join(dir, "walrelay")
	args := append([]string{"build", "-buildvcs=false", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, program)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build walrelay (%s): %w\n%s", cmd, err, out)
	}
	return binary, nil
}

// Flags are those of go build that this program was built with, where they decide
// what of it can be used again.
func Flags() []string {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return []string{"-race"}
	}
	return nil
}

// New prepares the program. The addresses of the servers go by way of the
// environment, as passwords should.
func New(cfg Config) (*Relay, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	r := &Relay{
		binary: cfg.Binary,
		args:   append(slices.Clone(cfg.Args), "--http", address),
		http:   address,
		log:    filepath.Join(cfg.Dir, "walrelay.log"),
	}
	for _, v := range os.Environ() {
		// Settings of the user's own relay or servers are not for this one.
		if !strings.HasPrefix(v, "WALRELAY_") && !strings.HasPrefix(v, "PG") {
			r.env = append(r.env, v)
		}
	}
	r.env = append(r.env, "WALRELAY_POSTGRES="+cfg.Postgres, "WALRELAY_REDIS="+cfg.Redis)
	return r, nil
}

// freeAddress is a port that nobody listens on. Somebody else may take it before
// the relay does; then the relay ends, and says so.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Start starts a process. It dies with us, even if we are killed: the kernel
// kills it when the thread that started it ends, so that thread is kept for it.
func (r *Relay) Start() error {
	log, err := os.OpenFile(r.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.binary, r.args...)
	cmd.Env = r.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // the terminal's Ctrl-C is for us, and we stop it in order
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			r.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start walrelay: %w", err)
	}
	r.cmd, r.done = cmd, done
	return nil
}

// PID is the process id of the last start.
func (r *Relay) PID() int { return r.cmd.Process.Pid }

// Kill is kill -9. It returns when the process is gone.
func (r *Relay) Kill() error {
	if r.cmd == nil {
		return nil
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-r.done
	return nil
}

// Stop is what a process manager does, and wants to see exit code 0.
func (r *Relay) Stop() error {
	const patience = 15 * time.Second // above the relay's own --shutdown-timeout
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-r.done:
	case <-time.After(patience):
		return fmt.Errorf("walrelay still ran %v after SIGTERM%s", patience, r.LogTail())
	}
	if r.err != nil {
		return fmt.Errorf("walrelay ended with %w after SIGTERM%s", r.err, r.LogTail())
	}
	return nil
}

// Running is an error once the process has ended by itself.
func (r *Relay) Running() error {
	select {
	case <-r.done:
		how := "exit status 0"
		if r.err != nil {
			how = r.err.Error()
		}
		return fmt.Errorf("walrelay ended by itself: %s%s", how, r.LogTail())
	default:
		return nil
	}
}

// Health asks /healthz.
func (r *Relay) Health(ctx context.Context) (code int, document []byte, err error) {
	return r.get(ctx, r.HealthURL())
}

func (r *Relay) get(ctx context.Context, url string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	request.Close = true // the relay is restarted; keep no connection to the old one
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// Log is the path of the log of all its runs.
func (r *Relay) Log() string { return r.log }

// Done is closed when the process of the last start is gone.
func (r *Relay) Done() <-chan struct{} { return r.done }

// MetricsURL is where Prometheus would ask.
func (r *Relay) MetricsURL() string { return "http://" + r.http + "/metrics" }

// HealthURL is where Health asks.
func (r *Relay) HealthURL() string { return "http://" + r.http + "/healthz" }

// Role is what the relay says of itself, empty where it does not answer.
func (r *Relay) Role(ctx context.Context) string {
	_, document, err := r.Health(ctx)
	var health struct {
		Role string `json:"role"`
	}
	if err != nil || json.Unmarshal(document, &health) != nil {
		return ""
	}
	return health.Role
}

// ErrNoMetric says that the relay answers, and has no metric of that name.
var ErrNoMetric = errors.New("walrelay has no such metric")

// Metric is the value of a metric without labels, or an [ErrNoMetric].
func (r *Relay) Metric(ctx context.Context, name string) (float64, error) {
	_, body, err := r.get(ctx, r.MetricsURL())
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrNoMetric, name)
}

// LogTail is the end of the log, to go behind an error.
func (r *Relay) LogTail() string {
	const lines = 15
	raw, err := os.ReadFile(r.log)
	if err != nil || len(raw) == 0 {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return "\nthe end of its log:\n" + "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
