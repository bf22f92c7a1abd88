package deploy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

func TestProgramsAcceptTheConfigurationOfTheChart(t *testing.T) {
	t.Parallel()
	for name, r := range releases(t) {
		programs := map[string]int{}
		for _, p := range r.pods() {
			command := p.spec.Containers[0].Command
			program := filepath.Base(command[0])
			programs[program]++
			printed, err := r.mounted(t, p).configured(t, program, environ(p), command[1:]...)
			if err != nil {
				t.Errorf("%s: %s: %v", name, p.name, err)
				continue
			}
			if program != "perceptorctl" {
				checkGrace(t, name, p, stopTime(t, program, printed))
			}
		}
		if programs["taskd"] != 1 || programs["dispatcher"] != 1 || programs["perceptorctl"] != 2 {
			t.Errorf("%s: got programs %v, want taskd, dispatcher, the migration and the test", name, programs)
		}
	}
}

func checkGrace(t *testing.T, values string, p pod, needed time.Duration) {
	t.Helper()
	if l := p.spec.Containers[0].Lifecycle; l != nil {
		needed += time.Duration(l.PreStop.Sleep.Seconds) * time.Second
	}
	if given := time.Duration(*p.spec.TerminationGracePeriodSeconds) * time.Second; given <= needed {
		t.Errorf("%s: %s is killed after %s; its configuration may take %s", values, p.name, given, needed)
	}
}

func TestValuesOfConfigWinOverOthers(t *testing.T) {
	t.Parallel()
	r := releases(t)["production.yaml"]
	i := slices.IndexFunc(r.pods(), func(p pod) bool { return p.name == "perceptor-taskd" })
	p := r.pods()[i]
	printed, err := r.mounted(t, p).configured(t, "taskd", environ(p))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"taskd.min_interval": "500ms", "taskd.drain_delay": "20s", "tasks.dead_retention": "168h"} {
		if got := parse(t, setting(t, printed, key)); got != parse(t, want) {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

func TestPodsMeetTheRestrictedStandard(t *testing.T) {
	t.Parallel()
	for name, r := range releases(t) {
		for _, p := range r.pods() {
			s, c := p.spec.SecurityContext, p.spec.Containers[0]
			if !*s.RunAsNonRoot || *s.RunAsUser != 65532 || *s.FSGroup != 65532 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *p.spec.AutomountServiceAccountToken {
				t.Errorf("%s: %s: %+v", name, p.name, s)
			}
			if k := c.SecurityContext; *k.AllowPrivilegeEscalation || !*k.ReadOnlyRootFilesystem || !slices.Equal(k.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %s: %+v", name, p.name, k)
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s: %s has no limit of memory or asks for no processor", name, p.name)
			}
			for _, v := range p.spec.Volumes {
				if v.Secret != nil && *v.Secret.DefaultMode != 0o440 {
					t.Errorf("%s: %s: the files of %s have mode %o, which the programs refuse", name, p.name, v.Name, *v.Secret.DefaultMode)
				}
			}
		}
	}
}

func TestProbesAskWhatTheProgramsServe(t *testing.T) {
	t.Parallel()
	for name, r := range releases(t) {
		scheme := corev1.URISchemeHTTPS
		if name == "insecure.yaml" {
			scheme = corev1.URISchemeHTTP
		}
		for _, d := range all[*appsv1.Deployment](r) {
			c := d.Spec.Template.Spec.Containers[0]
			for path, probes := range map[string][]*corev1.Probe{"/healthz": {c.StartupProbe, c.LivenessProbe}, "/readyz": {c.ReadinessProbe}} {
				for _, probe := range probes {
					if get := probe.HTTPGet; get.Path != path || get.Scheme != scheme || !hasPort(c, get.Port) {
						t.Errorf("%s: %s: %+v", name, d.Name, get)
					}
				}
			}
		}
	}
}

// hasPort reports whether a container names or numbers this port.
func hasPort(c corev1.Container, port intstr.IntOrString) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal || port.IntVal == p.ContainerPort })
}

func TestWhatSelectsPodsFindsThem(t *testing.T) {
	t.Parallel()
	for name, r := range releases(t) {
		chosen := func(who string, selector metav1.LabelSelector) pod {
			t.Helper()
			s, err := metav1.LabelSelectorAsSelector(&selector)
			if err != nil {
				t.Fatal(err)
			}
			var found []pod
			for _, p := range r.pods() {
				if s.Matches(labels.Set(p.meta.Labels)) {
					found = append(found, p)
				}
			}
			if len(found) != 1 {
				t.Fatalf("%s: %s selects %d kinds of pods, want 1", name, who, len(found))
			}
			return found[0]
		}
		for _, d := range all[*appsv1.Deployment](r) {
			chosen(d.Name, *d.Spec.Selector)
		}
		for _, b := range all[*policyv1.PodDisruptionBudget](r) {
			chosen("budget "+b.Name, *b.Spec.Selector)
		}
		for _, n := range all[*networkingv1.NetworkPolicy](r) {
			checkPolicy(t, n, chosen("policy "+n.Name, n.Spec.PodSelector))
		}
		for _, s := range all[*corev1.Service](r) {
			p := chosen("service "+s.Name, metav1.LabelSelector{MatchLabels: s.Spec.Selector})
			for _, port := range s.Spec.Ports {
				if !hasPort(p.spec.Containers[0], port.TargetPort) {
					t.Errorf("%s: %s leads to the port %s, which %s does not have", name, s.Name, port.TargetPort.String(), p.name)
				}
			}
		}
		for _, h := range all[*autoscalingv2.HorizontalPodAutoscaler](r) {
			if !slices.ContainsFunc(all[*appsv1.Deployment](r), func(d *appsv1.Deployment) bool { return d.Name == h.Spec.ScaleTargetRef.Name && d.Spec.Replicas == nil }) {
				t.Errorf("%s: %s scales nothing, or something with a fixed number", name, h.Name)
			}
		}
	}
}

func checkPolicy(t *testing.T, n *networkingv1.NetworkPolicy, p pod) {
	t.Helper()
	for _, in := range n.Spec.Ingress {
		for _, port := range in.Ports {
			if !hasPort(p.spec.Containers[0], *port.Port) {
				t.Errorf("%s opens the port %s, which %s does not have", n.Name, port.Port, p.name)
			}
		}
	}
}

func TestPoliciesLetProgramsReachTheirServers(t *testing.T) {
	t.Parallel()
	for name, ports := range map[string][]int{"production.yaml": {53, 5432, 9093}, "zookeeper.yaml": {53, 5432, 9093, 2281}} {
		for _, n := range all[*networkingv1.NetworkPolicy](releases(t)[name]) {
			var open []int
			for _, out := range n.Spec.Egress {
				for _, port := range out.Ports {
					open = append(open, port.Port.IntValue())
				}
			}
			for _, port := range ports {
				if !slices.Contains(open, port) {
					t.Errorf("%s: %s opens %v, without %d", name, n.Name, open, port)
				}
			}
		}
	}
}

// TestTheMigrationNeedsNothingOfTheRelease: before an installation, only hooks exist.
func TestTheMigrationNeedsNothingOfTheRelease(t *testing.T) {
	t.Parallel()
	for name, r := range releases(t) {
		jobs := all[*batchv1.Job](r)
		if len(jobs) != 1 || jobs[0].Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" {
			t.Fatalf("%s: no migration before installations and upgrades: %+v", name, jobs)
		}
		spec := jobs[0].Spec.Template.Spec
		if spec.ServiceAccountName != "" || slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil }) {
			t.Errorf("%s: the migration needs an object that may not be there yet: %+v", name, spec)
		}
	}
	r := releases(t)["zookeeper.yaml"]
	if got := all[*batchv1.Job](r)[0].Spec.Template.Spec.Volumes[0].Secret.SecretName; got != "perceptor-owner" {
		t.Errorf("the migration uses %s, want the owner's secret", got)
	}
}

func TestPrometheusFindsServicesOfAllPrograms(t *testing.T) {
	t.Parallel()
	r := releases(t)["production.yaml"]
	m := all[*serviceMonitor](r)[0]
	selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, s := range all[*corev1.Service](r) {
		if selector.Matches(labels.Set(s.Labels)) {
			found++
			if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }) {
				t.Errorf("%s has no port %s", s.Name, m.Spec.Endpoints[0].Port)
			}
		}
	}
	if e := m.Spec.Endpoints[0]; found != 2 || e.Scheme != "https" || e.Authorization.Credentials.Name != "perceptor-ops" || e.TLSConfig.CA.Secret.Name != "perceptor-tls" {
		t.Errorf("it finds %d services, want 2; %+v", found, e)
	}
}

func TestTheCertificateHasTheNamesOfTheServices(t *testing.T) {
	t.Parallel()
	c := all[*certificate](releases(t)["zookeeper.yaml"])[0]
	for _, name := range []string{"perceptor-taskd", "perceptor-taskd.tasks.svc", "perceptor-taskd-pods.tasks.svc.cluster.local", "perceptor.example.com"} {
		if !slices.Contains(c.Spec.DNSNames, name) {
			t.Errorf("%s is missing in %v", name, c.Spec.DNSNames)
		}
	}
}

func TestALongNameOfAReleaseFits(t *testing.T) {
	t.Parallel()
	r, err := render(t, strings.Repeat("long-name-", 5)+"abc", read(t, "helm/testdata/production.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, o := range r.objects {
		if len(o.GetName()) > 63 || strings.HasSuffix(o.GetName(), "-") {
			t.Errorf("%s has %d characters", o.GetName(), len(o.GetName()))
		}
		names[fmt.Sprintf("%T %s", o, o.GetName())] = true
	}
	if len(names) != len(r.objects) {
		t.Errorf("%d objects have %d names: %v", len(r.objects), len(names), names)
	}
}

func TestNotesAndTextsAreWhole(t *testing.T) {
	t.Parallel()
	for name, r := range releases(t) {
		text, err := yaml.Marshal(r.objects)
		if err != nil {
			t.Fatal(err)
		}
		if m := templated.FindString(r.notes + string(text)); m != "" {
			t.Errorf("%s: %q is left in a text", name, m)
		}
		if warns := strings.Contains(r.notes, "WARNING: insecure"); warns != (name == "insecure.yaml") {
			t.Errorf("%s: a warning of open links: %v", name, warns)
		}
	}
}

// withConfig returns values whose config has one more key.
func withConfig(t *testing.T, values, section, key string) string {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	config, _ := v["config"].(map[string]any)
	if config == nil {
		config = map[string]any{}
		v["config"] = config
	}
	of, _ := config[section].(map[string]any)
	if of == nil {
		of = map[string]any{}
		config[section] = of
	}
	of[key] = "60s"
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheSchemaRefusesBadValues(t *testing.T) {
	t.Parallel()
	good := read(t, "helm/testdata/production.yaml")
	for _, c := range []struct{ name, values, want string }{
		{"nothing", "", "/kafka/brokers"},
		{"no certificate", strings.Replace(good, "tls: {existingSecret: perceptor-tls}", "", 1), "/tls"},
		{"no token for operators", strings.Replace(good, "ops: {existingSecret: perceptor-ops}", "", 1), "/ops/existingSecret"},
		{"Kafka without TLS", strings.Replace(good, "  sasl:", "  tls: {enabled: false}\n  sasl:", 1), "/kafka/tls/enabled"},
		{"unknown name", good + "\nreplicas: 3\n", "'replicas' not allowed"},
		{"unknown name below", good + "\ndispatcher: {replica: 3}\n", "'replica' not allowed"},
		{"a database twice", strings.Replace(good, "[0, 1,", "[0, 0,", 1), "/postgres/servers/0/databases"},
		{"no port", strings.Replace(good, "kafka-1.kafka:9093", "kafka-1.kafka", 1), "/kafka/brokers/0"},
		{"a grace that the pod does not know", withConfig(t, good, "taskd", "grace"), "config.taskd.grace: set taskd.graceSeconds instead"},
		{"a delay that the pod does not know", withConfig(t, good, "taskd", "drain_delay"), "config.taskd.drain_delay: set taskd.drainDelaySeconds instead"},
		{"a grace of dispatchers", withConfig(t, good, "dispatcher", "grace"), "config.dispatcher.grace: set dispatcher.graceSeconds instead"},
		{"a number as text", good + "\ndispatcher: {replicas: three}\n", "/dispatcher/replicas"},
	} {
		if _, err := render(t, "perceptor", c.values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestTheReadmeHasEveryValue walks values.yaml and looks for each name.
func TestTheReadmeHasEveryValue(t *testing.T) {
	t.Parallel()
	readme := read(t, "helm/README.md")
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "helm/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		table, ok := v.(map[string]any)
		if !ok || len(table) == 0 || strings.HasSuffix(path, ".resources") {
			if !strings.Contains(readme, "`"+path+"`") {
				t.Errorf("README.md does not say what %s means", path)
			}
			return
		}
		for name, below := range table {
			walk(strings.TrimPrefix(path+"."+name, "."), below)
		}
	}
	walk("", values)
}
