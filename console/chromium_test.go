package console_test

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of all pages")

//go:embed testdata/axe.min.js
var axe string

// chrome starts a browser, or skips the test. In CI a missing browser is a failure.
func chrome(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a minute")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("chromium is missing: .ci/run installs it")
		}
		t.Skip("chromium is missing: apt-get install chromium")
	}
	options := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
	options = append(options, chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.UserDataDir(profile(t)), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := context.WithTimeout(context.Background(), longest())
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // events that it does not know
	t.Cleanup(cancel)                                                                    // waits until the browser has ended
	if err := chromedp.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func longest() time.Duration {
	if *screenshots != "" {
		return 10 * time.Minute
	}
	return 3 * time.Minute
}

// profile returns a directory that is removed after the browser, whose last children may
// still write to it for a moment.
func profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 50 {
			if err = os.RemoveAll(dir); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Error(err)
	})
	return dir
}

// tour is a user who goes through the pages.
type tour struct {
	t    *testing.T
	ctx  context.Context
	base string
	mu   sync.Mutex
	bad  []string // what scripts have reported
}

func newTour(ctx context.Context, t *testing.T, base string) *tour {
	x := &tour{t: t, ctx: ctx, base: base}
	chromedp.ListenTarget(ctx, func(e any) {
		if e, ok := e.(*runtime.EventExceptionThrown); ok {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.bad = append(x.bad, e.ExceptionDetails.Error())
		}
	})
	x.do(emulation.SetTimezoneOverride("Europe/Berlin"), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(axe).Do(ctx)
		return err
	}))
	x.dress(looks[0])
	return x
}

// scriptsWorked fails the test if a script of a page has thrown.
func (x *tour) scriptsWorked() {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.bad) > 0 {
		x.t.Errorf("scripts failed: %s", strings.Join(x.bad, "; "))
	}
}

func (x *tour) do(actions ...chromedp.Action) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, 2*time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		x.fail(err.Error())
	}
}

// fail ends the test and tells what the page shows.
func (x *tour) fail(what string) {
	x.t.Helper()
	var at string
	ctx, cancel := context.WithTimeout(x.ctx, 30*time.Second)
	defer cancel()
	_ = chromedp.Run(ctx, chromedp.Evaluate(`location.href + "\n" + document.body.innerText`, &at))
	x.t.Fatalf("%s, at %s", what, at)
}

// sees waits for a text.
func (x *tour) sees(text string) {
	x.t.Helper()
	x.until(fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

// until waits until an expression holds. It goes on while pages change.
func (x *tour) until(expression string) {
	x.t.Helper()
	x.await(fmt.Sprintf(`(() => { if (!(%s)) throw new Error("not yet") })()`, expression), nil)
}

// await waits until an expression does not throw, and stores its value, or what it promises.
func (x *tour) await(expression string, to any) {
	x.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(x.ctx, 30*time.Second)
		err := chromedp.Run(ctx, chromedp.Evaluate(expression, to, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			x.fail(fmt.Sprintf("never: %s (%v)", expression, err))
		}
	}
}

// target returns the middle of an element if the mouse would hit it there.
const target = `((e) => {
	e?.scrollIntoView({block: "center", behavior: "instant"});
	const r = e?.getBoundingClientRect(), x = r?.x + r?.width / 2, y = r?.y + r?.height / 2;
	if (!r?.width || document.readyState !== "complete" || !e.contains(document.elementFromPoint(x, y))) throw new Error("not yet");
	return [x, y];
})(document.querySelector(%q))`

// click clicks an element with the mouse as soon as nothing covers it. Clicks of chromedp
// wait for its own copy of the page, which does not know dialogs.
func (x *tour) click(selector string) {
	x.t.Helper()
	var at []float64
	x.await(fmt.Sprintf(target, selector), &at)
	x.do(chromedp.MouseClickXY(at[0], at[1]))
}

// write types a text into a field in place of what it has.
func (x *tour) write(selector, text string) {
	x.t.Helper()
	x.click(selector)
	x.do(chromedp.Evaluate(`document.activeElement.select()`, nil), chromedp.KeyEvent(text))
}

// open opens a page and looks at it.
func (x *tour) open(name, path string) {
	x.t.Helper()
	x.do(chromedp.Navigate(x.base + path))
	x.look(name)
}

// dress is one way in which a page is shown.
type dress struct {
	scheme, size string
	width        int64
}

// looks are all of them. The first is the one in which the tour goes on.
var looks = []dress{{"light", "wide", 1360}, {"dark", "wide", 1360}, {"dark", "narrow", 390}, {"light", "narrow", 390}}

func (x *tour) dress(d dress) {
	x.t.Helper()
	x.do(emulation.SetDeviceMetricsOverride(d.width, 850, 1, false), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: d.scheme},
		{Name: "prefers-reduced-motion", Value: "reduce"}, // a click into the transition between two pages is lost
	}))
}

// look examines the page in every dress with axe, and takes its pictures.
func (x *tour) look(name string) {
	x.t.Helper()
	for _, d := range looks {
		x.dress(d)
		if *screenshots == "" {
			x.do(chromedp.Evaluate(`document.querySelectorAll("main details").forEach(d => d.open = true)`, nil)) // axe looks at open parts only
		} else {
			x.picture(fmt.Sprintf("%s-%s-%s.webp", name, d.scheme, d.size))
		}
		x.examine(name + ", " + d.scheme + " and " + d.size)
	}
	x.dress(looks[0])
}

func (x *tour) examine(what string) {
	x.t.Helper()
	var found []string
	x.await(`axe.run().then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).slice(0, 3).join("; ")))`, &found)
	for _, f := range found {
		x.t.Errorf("%s: axe finds %s", what, f)
	}
}

func (x *tour) picture(file string) {
	x.t.Helper()
	var picture []byte
	x.do(chromedp.Sleep(300*time.Millisecond), chromedp.ActionFunc(func(ctx context.Context) (err error) {
		picture, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatWebp).WithQuality(60).Do(ctx)
		return err
	}))
	if err := os.WriteFile(filepath.Join(*screenshots, file), picture, 0o644); err != nil {
		x.t.Fatal(err)
	}
}
