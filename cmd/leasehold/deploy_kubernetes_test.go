package main

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/internal/doctest"
	"github.com/leasehold/leasehold/internal/privatepg/pgtest"
	"github.com/leasehold/leasehold/internal/testca"
)

// What the manifests use of Kubernetes' types; another word is a slip.
type (
	deployment struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   objectMeta
		Spec       struct {
			Replicas int
			Selector labelSelector
			Strategy struct {
				Type          string
				RollingUpdate map[string]int `yaml:"rollingUpdate"`
			}
			Template struct {
				Metadata objectMeta
				Spec     podSpec
			}
		}
	}
	objectMeta struct {
		Name                string
		Labels, Annotations map[string]string
	}
	labelSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	podSpec struct {
		TerminationGracePeriodSeconds int            `yaml:"terminationGracePeriodSeconds"`
		AutomountServiceAccountToken  *bool          `yaml:"automountServiceAccountToken"`
		SecurityContext               map[string]any `yaml:"securityContext"`
		TopologySpreadConstraints     []struct {
			MaxSkew           int           `yaml:"maxSkew"`
			TopologyKey       string        `yaml:"topologyKey"`
			WhenUnsatisfiable string        `yaml:"whenUnsatisfiable"`
			LabelSelector     labelSelector `yaml:"labelSelector"`
		} `yaml:"topologySpreadConstraints"`
		InitContainers []container `yaml:"initContainers"`
		Containers     []container
		Volumes        []struct {
			Name      string
			Secret    map[string]any
			ConfigMap map[string]any `yaml:"configMap"`
			EmptyDir  map[string]any `yaml:"emptyDir"`
		}
	}
	container struct {
		Name, Image   string
		RestartPolicy string `yaml:"restartPolicy"`
		Args          []string
		Env           []struct{ Name, Value string }
		Ports         []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe    *probe `yaml:"startupProbe"`
		LivenessProbe   *probe `yaml:"livenessProbe"`
		ReadinessProbe  *probe `yaml:"readinessProbe"`
		Resources       struct{ Requests, Limits map[string]string }
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
)

// readManifest reads the Deployment of a manifest, and the kinds of all its objects.
func readManifest(t *testing.T, name string) (d deployment, kinds []string) {
	t.Helper()
	text := readFile(t, filepath.Join(doctest.Root(t), "deploy", "kubernetes"), name)
	for documents := yaml.NewDecoder(strings.NewReader(text)); ; {
		var node yaml.Node
		err := documents.Decode(&node)
		if errors.Is(err, io.EOF) {
			return d, kinds
		}
		var object struct{ Kind string }
		if err = errors.Join(err, node.Decode(&object)); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, object.Kind)
		if object.Kind != "Deployment" {
			continue
		}
		again, err := yaml.Marshal(&node)
		if err != nil {
			t.Fatal(err)
		}
		strict := yaml.NewDecoder(strings.NewReader(string(again)))
		strict.KnownFields(true)
		if err := strict.Decode(&d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func (c container) env() map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	return env
}

// judge holds a container to what all of ours have.
func (c container) judge(t *testing.T, pod podSpec, httpPort string) {
	t.Helper()
	s := c.SecurityContext
	if !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("%s: %+v", c.Name, s)
	}
	if pod.SecurityContext["runAsNonRoot"] != true || pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("the pod of %s: %+v", c.Name, pod.SecurityContext)
	}
	ports := map[string]int{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, p := range []*probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p != nil && (p.HTTPGet.Port != "http" || !slices.Contains([]string{"/healthz", "/readyz"}, p.HTTPGet.Path)) {
			t.Errorf("%s is asked %+v", c.Name, p.HTTPGet)
		}
	}
	if c.LivenessProbe == nil || c.LivenessProbe.HTTPGet.Path != "/healthz" || httpPort != ":"+strconv.Itoa(ports["http"]) {
		t.Errorf("%s: liveness %+v, HTTP on %q, ports %v", c.Name, c.LivenessProbe, httpPort, ports)
	}
	var volumes, mounted []string
	for _, v := range pod.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, m := range c.VolumeMounts {
		if mounted = append(mounted, m.MountPath); !slices.Contains(volumes, m.Name) {
			t.Errorf("%s mounts %s, which is no volume", c.Name, m.Name)
		}
	}
	for _, e := range c.Env {
		path := strings.TrimPrefix(e.Value, "unix:")
		if strings.HasPrefix(path, "/") && !slices.Contains(mounted, filepath.Dir(path)) {
			t.Errorf("%s: nothing is mounted for %s=%s", c.Name, e.Name, e.Value)
		}
	}
}

// underDir is an environment whose files lie below another folder.
func underDir(env map[string]string, from, to string) map[string]string {
	out := maps.Clone(env)
	for name, value := range out {
		out[name] = strings.Replace(value, from, to, 1)
	}
	return out
}

// withURLFile is an environment whose file of the database's URL is there: it is read at once.
func withURLFile(t *testing.T, env map[string]string) map[string]string {
	t.Helper()
	out, file := maps.Clone(env), filepath.Join(t.TempDir(), "url")
	writeFile(t, file, "postgres://leasehold@primary,standby/leasehold?target_session_attrs=read-write")
	if out["LEASEHOLD_DATABASE_URL_FILE"] == "" {
		t.Error("the URL, which has a password, does not come from a file")
	}
	out["LEASEHOLD_DATABASE_URL_FILE"] = file
	return out
}

// asList is an environment as processes get it, without what a test chooses itself.
func asList(env map[string]string, without ...string) []string {
	var list []string
	for name, value := range env {
		if !slices.Contains(without, name) {
			list = append(list, name+"="+value)
		}
	}
	return list
}

// TestKubernetesManifests: what they say is what the binary takes, its probes ask what it answers,
// and it is not killed in its drain.
func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	service, kinds := readManifest(t, "leasehold.yaml")
	if want := []string{"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}; !slices.Equal(kinds, want) {
		t.Errorf("%q, want %q", kinds, want)
	}
	pod := service.Spec.Template.Spec
	c := pod.Containers[0]
	cfg := mustConfigure(t, c.Args, withURLFile(t, c.env()))
	c.judge(t, pod, cfg.HTTP)
	if grace := time.Duration(pod.TerminationGracePeriodSeconds) * time.Second; grace <= cfg.DrainTimeout {
		t.Errorf("the service is killed after %s and drains for %s", grace, cfg.DrainTimeout)
	}
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet.Path != "/readyz" || !slices.ContainsFunc(c.Ports, func(p struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}) bool {
		return ":"+strconv.Itoa(p.ContainerPort) == cfg.Listen
	}) {
		t.Errorf("readiness %+v, ports %+v", c.ReadinessProbe, c.Ports)
	}
	if !maps.Equal(service.Spec.Selector.MatchLabels, service.Spec.Template.Metadata.Labels) || service.Spec.Strategy.RollingUpdate["maxUnavailable"] != 0 {
		t.Errorf("%+v", service.Spec)
	}

	beside, _ := readManifest(t, "worker-with-sidecar.yaml")
	pod = beside.Spec.Template.Spec
	s, worker := pod.InitContainers[0], pod.Containers[0]
	sc := sidecarOf(t, s)
	s.judge(t, pod, sc.HTTP)
	if grace := time.Duration(pod.TerminationGracePeriodSeconds) * time.Second; grace <= sc.DrainTimeout || s.RestartPolicy != "Always" || s.StartupProbe == nil {
		t.Errorf("the sidecar: grace %s, drain %s, restart %s", grace, sc.DrainTimeout, s.RestartPolicy)
	}
	if worker.env()["LEASEHOLD_ADDRESS"] != sc.Listen {
		t.Errorf("the worker calls %q, the sidecar listens on %q", worker.env()["LEASEHOLD_ADDRESS"], sc.Listen)
	}
}

// sidecarOf passes a container through the sidecar's parser.
func sidecarOf(t *testing.T, c container) *sidecarConfig {
	t.Helper()
	if !slices.Equal(c.Args, []string{"sidecar"}) {
		t.Fatalf("the container runs %q", c.Args)
	}
	cfg, env := &sidecarConfig{}, c.env()
	f := pflag.NewFlagSet("sidecar", pflag.ContinueOnError)
	sidecarFlags(f, cfg)
	for name := range env {
		if f.Lookup(strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-"))) == nil {
			t.Errorf("sidecar knows no %s", name)
		}
	}
	lookup := func(name string) (string, bool) { value, set := env[name]; return value, set }
	if err := errors.Join(applyEnv(f, lookup), cfg.validate()); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestKubernetesCommandLinesRun: the binary runs with the arguments, variables and files of both
// manifests, and a worker reaches the service through the sidecar's socket.
func TestKubernetesCommandLinesRun(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), testca.New(t, "authority")
	for _, folder := range []string{"database", "tls", "client-ca", "access"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	put := func(to, text string) { t.Helper(); writeFile(t, filepath.Join(dir, to), text) }
	cert, key := ca.Cert(t, t.TempDir(), testca.Spec{CN: "leasehold", DNS: []string{"leasehold"}})
	authority := readFile(t, filepath.Dir(ca.File), filepath.Base(ca.File))
	put("database/url", pgtest.Database(t, nil))
	put("tls/tls.crt", readFile(t, "", cert))
	put("tls/tls.key", readFile(t, "", key))
	put("tls/ca.crt", authority)
	put("client-ca/ca.pem", authority)
	put("access/access.yaml", "certificates:\n  - {name: worker, subject: \"cn:leasehold\", grants: {worker: [\"*\"], operator: [\"*\"]}}\n")

	service, _ := readManifest(t, "leasehold.yaml")
	c := service.Spec.Template.Spec.Containers[0]
	env := asList(underDir(c.env(), "/etc/leasehold", dir), "LEASEHOLD_LISTEN", "LEASEHOLD_HTTP")
	p := beginServiceIn(t, env, c.Args...)
	address, _ := p.addresses(t)

	beside, _ := readManifest(t, "worker-with-sidecar.yaml")
	s := beside.Spec.Template.Spec.InitContainers[0]
	socket, err := os.MkdirTemp("", "lh-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(socket) })
	env = asList(underDir(underDir(s.env(), "/etc/leasehold", dir), "/run/leasehold", socket), "LEASEHOLD_HTTP", "LEASEHOLD_UPSTREAM")
	env = append(env, "LEASEHOLD_HTTP=127.0.0.1:0", "LEASEHOLD_UPSTREAM="+address, "LEASEHOLD_READY_FILE="+filepath.Join(socket, "ready"))
	side := begin(t, env, s.Args...)
	side.ready = filepath.Join(socket, "ready")
	beside1, _ := side.addresses(t)
	conn := dial(t, beside1)
	if _, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Queue: &pb.Queue{Name: "q"}}); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for _, ended := range []*process{side, p} {
		ended.signal(t, syscall.SIGTERM)
		ended.mustExit(t, 0)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
