package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// serviceMonitor and certificate are the parts of resources of the Prometheus operator and of
// cert-manager that the chart uses, whose own modules are not worth their weight here.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		JobLabel  string               `json:"jobLabel"`
		Endpoints []struct {
			Port          string `json:"port"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			Scheme        string `json:"scheme"`
			Authorization struct {
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
			TLSConfig struct {
				ServerName string `json:"serverName"`
				CA         struct {
					Secret corev1.SecretKeySelector `json:"secret"`
				} `json:"ca"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

type certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SecretName string `json:"secretName"`
		IssuerRef  struct {
			Name string `json:"name"`
			Kind string `json:"kind"`
		} `json:"issuerRef"`
		Usages     []string `json:"usages"`
		PrivateKey struct {
			Algorithm      string `json:"algorithm"`
			Size           int    `json:"size"`
			RotationPolicy string `json:"rotationPolicy"`
		} `json:"privateKey"`
		DNSNames []string `json:"dnsNames"`
	} `json:"spec"`
}

// kinds are the objects that the chart makes.
var kinds = map[string]func() metav1.Object{
	"v1/ConfigMap":                            func() metav1.Object { return &corev1.ConfigMap{} },
	"v1/Pod":                                  func() metav1.Object { return &corev1.Pod{} },
	"v1/Service":                              func() metav1.Object { return &corev1.Service{} },
	"v1/ServiceAccount":                       func() metav1.Object { return &corev1.ServiceAccount{} },
	"apps/v1/Deployment":                      func() metav1.Object { return &appsv1.Deployment{} },
	"batch/v1/Job":                            func() metav1.Object { return &batchv1.Job{} },
	"autoscaling/v2/HorizontalPodAutoscaler":  func() metav1.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"policy/v1/PodDisruptionBudget":           func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	"networking.k8s.io/v1/NetworkPolicy":      func() metav1.Object { return &networkingv1.NetworkPolicy{} },
	"monitoring.coreos.com/v1/ServiceMonitor": func() metav1.Object { return &serviceMonitor{} },
	"cert-manager.io/v1/Certificate":          func() metav1.Object { return &certificate{} },
}

// rendering is what the chart makes of some values.
type rendering struct {
	objects []metav1.Object
	notes   string
}

// render renders the chart with a file of values as `helm install` does.
func render(t *testing.T, name, values string) (*rendering, error) {
	t.Helper()
	chart, err := loader.Load("helm")
	if err != nil {
		t.Fatal(err)
	}
	given, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(chart, given, common.ReleaseOptions{Name: name, Namespace: "tasks", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, err
	}
	r := &rendering{}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(path, "NOTES.txt") {
			r.notes = files[path]
			continue
		}
		for text := range strings.SplitSeq(files[path], "\n---") {
			r.add(t, path, text)
		}
	}
	return r, nil
}

// add decodes an object strictly: an unknown or repeated field is an error.
func (r *rendering) add(t *testing.T, path, text string) {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		t.Fatalf("%s: %v in:\n%s", path, err, text)
	}
	if kind.Kind == "" {
		return // a template whose condition does not hold
	}
	create, known := kinds[kind.APIVersion+"/"+kind.Kind]
	if !known {
		t.Fatalf("%s: the test does not know %s of %s", path, kind.Kind, kind.APIVersion)
	}
	object := create()
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%s: %v in:\n%s", path, err, text)
	}
	r.objects = append(r.objects, object)
}

// all returns the objects of one type.
func all[T metav1.Object](r *rendering) []T {
	var found []T
	for _, o := range r.objects {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// releases renders each file of values in helm/testdata.
func releases(t *testing.T) map[string]*rendering {
	t.Helper()
	paths, err := filepath.Glob("helm/testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	rendered := map[string]*rendering{}
	for _, path := range paths {
		r, err := render(t, "perceptor", read(t, path))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		rendered[filepath.Base(path)] = r
	}
	return rendered
}

// pod is a pod with where it comes from.
type pod struct {
	name string
	meta metav1.ObjectMeta
	spec corev1.PodSpec
}

func (r *rendering) pods() []pod {
	var pods []pod
	for _, d := range all[*appsv1.Deployment](r) {
		pods = append(pods, pod{d.Name, d.Spec.Template.ObjectMeta, d.Spec.Template.Spec})
	}
	for _, j := range all[*batchv1.Job](r) {
		pods = append(pods, pod{j.Name, j.Spec.Template.ObjectMeta, j.Spec.Template.Spec})
	}
	for _, p := range all[*corev1.Pod](r) {
		pods = append(pods, pod{p.Name, p.ObjectMeta, p.Spec})
	}
	return pods
}

// secrets has the keys of secrets that are mounted whole.
var secrets = map[string][]string{
	"perceptor-postgres": {"dsn", "db-1", "db-2"}, "postgres": {"dsn"}, "perceptor-owner": {"dsn"}, "perceptor-tls": {"tls.crt", "tls.key", "ca.crt"},
}

// mounted is the file system of the pod's container.
func (r *rendering) mounted(t *testing.T, p pod) tree {
	t.Helper()
	files, volumes := tree{}, map[string]map[string]string{}
	for _, v := range p.spec.Volumes {
		content := map[string]string{}
		switch {
		case v.ConfigMap != nil:
			for _, c := range all[*corev1.ConfigMap](r) {
				if c.Name == v.ConfigMap.Name {
					content = c.Data
				}
			}
		case v.Secret != nil:
			for _, key := range secrets[v.Secret.SecretName] {
				content[key] = "postgres://perceptor:secret@db/perceptor?sslmode=verify-full\n"
			}
			if len(v.Secret.Items) > 0 {
				content = map[string]string{v.Secret.Items[0].Path: "a secret of more than 16 bytes"}
			}
		}
		volumes[v.Name] = content
	}
	for _, m := range p.spec.Containers[0].VolumeMounts {
		if len(volumes[m.Name]) == 0 || !m.ReadOnly {
			t.Errorf("%s: the volume %s is empty or not read-only", p.name, m.Name)
		}
		for path, text := range volumes[m.Name] {
			files[filepath.Join(m.MountPath, path)] = text
		}
	}
	return files
}

// environ returns the environment of the pod's container as Kubernetes makes it.
func environ(p pod) map[string]string {
	fields := map[string]string{"metadata.name": p.name + "-5d8f", "status.podIP": "10.1.2.3"}
	env := map[string]string{}
	for _, v := range p.spec.Containers[0].Env {
		env[v.Name] = os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(v.Value), func(name string) string { return env[name] })
		if v.ValueFrom != nil {
			env[v.Name] = fields[v.ValueFrom.FieldRef.FieldPath]
		}
	}
	return env
}

var templated = regexp.MustCompile(`\{\{|<no value>|%!`)
