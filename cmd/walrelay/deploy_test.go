package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"
	"gopkg.in/yaml.v3"
)

// deployed is a file for Prometheus or Grafana.
func deployed(name string) string { return filepath.Join("..", "..", "deploy", name) }

// promtool runs Prometheus' own tool.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v; internal/testservers/install.sh installs it", err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// ruleFile is a file of alert rules.
type ruleFile struct {
	Groups []ruleGroup `yaml:"groups" json:"groups"`
}

type ruleGroup struct {
	Name  string `yaml:"name" json:"name"`
	Rules []rule `yaml:"rules" json:"rules"`
}

type rule struct {
	Alert       string            `yaml:"alert" json:"alert,omitempty"`
	Record      string            `yaml:"record" json:"record,omitempty"`
	Expr        string            `yaml:"expr" json:"expr"`
	Labels      map[string]string `yaml:"labels" json:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations" json:"annotations,omitempty"`
}

// alerts are those of the file that is delivered, by name.
func alerts(t *testing.T) map[string]rule {
	t.Helper()
	var file ruleFile
	readYAML(t, deployed("alerts.yml"), &file)
	all := map[string]rule{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if _, twice := all[r.Alert]; twice || r.Alert == "" {
				t.Errorf("%q is there twice, or is no name", r.Alert)
			}
			all[r.Alert] = r
		}
	}
	return all
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// Each alert is tested by Prometheus' own tool, with series over which it fires
// and with such over which it does not, and says what to do.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool(t, "", "check", "rules", deployed("alerts.yml"))
	promtool(t, "", "test", "rules", deployed("alerts_test.yml"))

	var tests struct {
		Tests []struct {
			Looks []struct {
				Alert string `yaml:"alertname"`
				Fires []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, deployed("alerts_test.yml"), &tests)
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, look := range test.Looks {
			if len(look.Fires) > 0 {
				fires[look.Alert] = true
			} else {
				quiet[look.Alert] = true
			}
		}
	}
	runbook, err := os.ReadFile(deployed("README.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := alerts(t)
	for name, r := range all {
		if !fires[name] || !quiet[name] {
			t.Errorf("%s: that it fires is tested: %t; that it does not: %t", name, fires[name], quiet[name])
		}
		if severity := r.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", name, severity)
		}
		for _, key := range []string{"summary", "description"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no %s", name, key)
			}
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/deploy/README.md#"+strings.ToLower(name)) ||
			!strings.Contains(string(runbook), "\n### "+name+"\n") {
			t.Errorf("%s: no part of deploy/README.md says what to do", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (Walrelay\w+)$`).FindAllStringSubmatch(string(runbook), -1) {
		if _, ok := all[m[1]]; !ok {
			t.Errorf("deploy/README.md is about %s, which is no alert", m[1])
		}
	}
}

// promQuery is one of a dashboard or a rule, and where it is.
type promQuery struct{ where, expr, legend string }

// dashboardQueries are all queries of the dashboard, its variables among them.
func dashboardQueries(t *testing.T) (queries []promQuery) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			ID          int
			Type, Title string
			Description string
			Datasource  struct{ UID string }
			Targets     []struct{ Expr, LegendFormat string }
		}
		Annotations struct{ List []struct{ Name, Expr string } }
		Templating  struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	text, err := os.ReadFile(deployed("grafana-dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q: data source %q, description %q, %d queries", p.Title, p.Datasource.UID, p.Description, len(p.Targets))
		}
		for _, target := range p.Targets {
			queries = append(queries, promQuery{"panel " + p.Title, target.Expr, target.LegendFormat})
		}
	}
	for _, a := range dashboard.Annotations.List {
		if a.Expr != "" {
			queries = append(queries, promQuery{"annotation " + a.Name, a.Expr, ""})
		}
	}
	for _, v := range dashboard.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			queries = append(queries, promQuery{"variable " + v.Name, m[1], "{{" + m[2] + "}}"})
		}
	}
	if len(queries) < 50 {
		t.Errorf("only %d queries", len(queries))
	}
	// What Grafana fills in.
	for i := range queries {
		queries[i].expr = strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*").Replace(queries[i].expr)
	}
	return queries
}

func TestDashboardQueriesAreQueries(t *testing.T) {
	t.Parallel()
	group := ruleGroup{Name: "dashboard"}
	for i, q := range dashboardQueries(t) {
		group.Rules = append(group.Rules, rule{Record: fmt.Sprintf("dashboard:%d", i), Expr: q.expr})
	}
	text, err := json.Marshal(ruleFile{Groups: []ruleGroup{group}}) // which is YAML, too
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", path)
}

// targetLabels are those that Prometheus adds.
var targetLabels = []string{"job", "instance", "pod"}

var (
	selectors = regexp.MustCompile(`\b((?:walrelay|process|go)_\w+)\b(?:\{([^}]*)\})?`)
	matchers  = regexp.MustCompile(`(\w+)\s*(=~|=|!~|!=)\s*"([^"]*)"`)
	groupings = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	legends   = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// unknown says what a query asks for that is not among the metrics.
func (q promQuery) unknown(families map[string]*dto.MetricFamily) (problems []string) {
	there := map[string]bool{} // labels of what it asks for
	for _, name := range targetLabels {
		there[name] = true
	}
	for _, s := range selectors.FindAllStringSubmatch(q.expr, -1) {
		values, ok := labelValues(families, s[1])
		if !ok {
			problems = append(problems, "no metric "+s[1])
			continue
		}
		for name := range values {
			there[name] = true
		}
		for _, m := range matchers.FindAllStringSubmatch(s[2], -1) {
			name, operator, want := m[1], m[2], m[3]
			if slices.Contains(targetLabels, name) {
				continue
			}
			is := regexp.QuoteMeta(want)
			if strings.HasSuffix(operator, "~") {
				is = want
			}
			matches := regexp.MustCompile("^(?:" + is + ")$").MatchString
			if !slices.ContainsFunc(values[name], matches) {
				problems = append(problems, fmt.Sprintf("no %s of %s is %s", name, s[1], want))
			}
		}
	}
	asked := legends.FindAllStringSubmatch(q.legend, -1)
	for _, g := range groupings.FindAllStringSubmatch(q.expr, -1) {
		for _, name := range strings.Split(g[1], ",") {
			asked = append(asked, []string{"", strings.TrimSpace(name)})
		}
	}
	for _, name := range asked {
		if !there[name[1]] {
			problems = append(problems, "no label "+name[1])
		}
	}
	return problems
}

// labelValues are the labels of a metric with their values; false where there is
// no such metric.
func labelValues(families map[string]*dto.MetricFamily, name string) (map[string][]string, bool) {
	values := map[string][]string{}
	f, ok := families[name]
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		base, is := strings.CutSuffix(name, part)
		if h := families[base]; is && h != nil && h.GetType() == dto.MetricType_HISTOGRAM {
			f, ok = h, true
			if part == "_bucket" {
				values["le"] = []string{"+Inf"}
			}
		}
	}
	for _, m := range f.GetMetric() {
		for _, l := range m.Label {
			values[l.GetName()] = append(values[l.GetName()], l.GetValue())
		}
	}
	return values, ok
}

func parseMetrics(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(prometheus.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestQueriesOfWhatIsNotThereAreFound(t *testing.T) {
	t.Parallel()
	families := parseMetrics(t, `# TYPE walrelay_role gauge
walrelay_role{role="standby"} 1
# TYPE walrelay_batch_rows histogram
walrelay_batch_rows_bucket{le="+Inf"} 1
walrelay_batch_rows_sum 1
walrelay_batch_rows_count 1
`)
	for _, c := range []struct{ expr, legend, problem string }{
		{`max by (role) (walrelay_role{job=~"a", role="standby"}) == 1`, "{{instance}} {{role}}", ""},
		{`sum by (le) (rate(walrelay_batch_rows_bucket[5m])) / rate(walrelay_batch_rows_count[5m])`, "", ""},
		{`walrelay_roles`, "", "no metric walrelay_roles"},
		{`walrelay_role_count`, "", "no metric walrelay_role_count"},
		{`walrelay_role{role="active"}`, "", "no role of walrelay_role is active"},
		{`walrelay_role{state=~"standby|active"}`, "", "no state of walrelay_role is standby|active"},
		{`sum by (state) (walrelay_role)`, "", "no label state"},
		{`walrelay_role`, "{{state}}", "no label state"},
	} {
		if got := strings.Join((promQuery{"", c.expr, c.legend}).unknown(families), "; "); got != c.problem {
			t.Errorf("%s %s: %q, want %q", c.expr, c.legend, got, c.problem)
		}
	}
}

// What dashboard and alerts ask for is what a relay that works says, so that no
// panel stays empty and no alert silent because of a name.
func TestQueriesAreOfMetricsThatARelayHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{"max_slot_wal_keep_size": "1GB"}})
	w.exec(`SELECT pg_create_physical_replication_slot('replica', true)`)
	w.insert("backfilled", 3)
	p := w.startRelay("--disk-budget", "1KiB")
	p.streams()
	if err := w.rdb().XGroupCreateMkStream(t.Context(), "jobs", "mail", "0").Err(); err != nil {
		t.Fatal(err)
	}
	w.insert("streamed", 5)
	w.verify(3)
	w.allMarked()

	queries := dashboardQueries(t)
	for name, r := range alerts(t) {
		queries = append(queries, promQuery{"alert " + name, r.Expr, ""})
	}
	spills := w.query(`current_setting('server_version_num')::int >= 140000`) == "true"
	var text string
	w.eventually("every metric", func() error {
		text = p.metrics()
		families := parseMetrics(t, text)
		var problems []string
		for _, q := range queries {
			for _, problem := range q.unknown(families) {
				if spills || !strings.Contains(problem, "_slot_spill") {
					problems = append(problems, q.where+": "+problem)
				}
			}
		}
		if len(problems) > 0 {
			return fmt.Errorf("%s, of %s", strings.Join(problems, "\n"), slices.Sorted(maps.Keys(families)))
		}
		return nil
	})
	promtool(t, text, "check", "metrics")

	// Rows of a backfill were not on their way.
	for name, want := range map[string]string{
		"walrelay_published_rows_total":          "8",
		"walrelay_publish_latency_seconds_count": "5",
		"walrelay_batch_rows_sum":                "8",
	} {
		if got := p.metric(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
