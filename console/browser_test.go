package console_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestEveryPageAndActionInARealBrowser goes through the console of a whole installation.
func TestEveryPageAndActionInARealBrowser(t *testing.T) {
	ctx := chrome(t)
	i := newInstallation(t)
	id := i.fill()
	x := newTour(ctx, t, "http://"+i.http)
	x.open("login", "/console/login")
	x.do(chromedp.Navigate(x.base + i.api.ConsoleLink(i.admin, i.tenant)))
	x.sees("What needs attention")
	x.tasks(id)
	x.bulk()
	x.deadRuns()
	x.cluster()
	x.tenants(i.spare)
	x.rest()
	x.scriptsWorked()
}

func (x *tour) tasks(id int64) {
	x.t.Helper()
	x.open("tasks", "/console/tasks?tenant=acme")
	x.sees(`<script>alert("x")</script>`)
	x.write("#q", "invoice-77\r")
	x.sees("Next instants")
	x.look("task")
	x.open("edit", fmt.Sprintf("/console/tasks/%d/edit?tenant=acme", id))
	x.write("#f-interval", "2h")
	x.click("main form .primary")
	x.sees("has version 2 now. Changed: interval")
	for _, a := range []struct{ name, result string }{{"trigger", "will be delivered now"}, {"pause", "is paused"}, {"resume", "is resumed"}, {"cancel", "is cancelled"}} {
		x.confirm(`button[commandfor="` + a.name + `"]`)
		x.sees(a.result)
	}
}

// confirm opens a dialog by a button, and says yes.
func (x *tour) confirm(button string) {
	x.t.Helper()
	x.click(button)
	x.click(`dialog[open] .ends button:last-child`)
}

func (x *tour) bulk() {
	x.t.Helper()
	x.open("newbulk", "/console/bulk/new?tenant=acme&kind=report&action=CANCEL")
	x.click("main form .primary")
	x.sees("Type the count")
	x.look("dryrun")
	x.write("#count", "11")
	x.until(`document.querySelector("button[data-guarded]").disabled`)
	x.write("#count", "12")
	x.click("button[data-guarded]")
	x.sees("has begun")
	x.until(`document.querySelector("main .badge").innerText === "Done"`)
	x.open("bulk", "/console/bulk?tenant=acme")
}

func (x *tour) deadRuns() {
	x.t.Helper()
	x.do(chromedp.Navigate(x.base + "/console/dead?tenant=acme"))
	x.until(`document.querySelectorAll("tbody tr").length >= 3 || (setTimeout(() => location.reload(), 300), false)`)
	x.look("dead")
	x.sees("card declined")
	x.click("tbody tr:first-child form button")
	x.sees("is replayed by a new task")
	x.click("tbody tr:last-child td:first-child a")
	x.sees("Last error")
	x.look("deadrun")
	x.confirm(`button[commandfor="purge"]`)
	x.sees("is deleted")
}

func (x *tour) cluster() {
	x.t.Helper()
	x.open("cluster", "/console/cluster")
	x.sees("dispatcher-2")
	x.confirm(`button[command="show-modal"][commandfor^="drain-"]`)
	x.sees("hands over its items")
	x.sees("drained")
	x.click(`input[value="undrain"] ~ button`)
	x.until(`!document.querySelector("main").innerText.includes("drained")`)
	x.click(`button[commandfor="items"]`)
	x.write("#items-range", "0-7")
	x.write("#items-member", "dispatcher-1")
	x.click(`dialog[open] .ends button:last-child`)
	x.sees("Pinned")
	x.confirm(`button[commandfor="pauseall"]`)
	x.sees("all items paused")
	x.click(`input[value="resume-all"] ~ button`)
	x.until(`!document.querySelector("main").innerText.includes("all items paused")`)
}

func (x *tour) tenants(spare string) {
	x.t.Helper()
	x.open("tenants", "/console/tenants")
	x.open("tenant", "/console/tenants/acme?tenant=acme")
	x.confirm(`button[commandfor="pause"]`)
	x.sees("Paused")
	x.confirm(`button[commandfor="resume"]`)
	x.until(`!document.querySelector(".head .badge")`)
	x.confirm(`button[commandfor="revoke-` + spare + `"]`)
	x.sees("revoked")
	x.open("settings", "/console/tenants/acme/edit?tenant=acme")
	x.write("#f-weight", "250")
	x.click("main form .primary")
	x.until(`[...document.querySelectorAll("dd")].some(d => d.innerText === "250")`)
}

func (x *tour) rest() {
	x.t.Helper()
	x.open("schedule", "/console/schedule?expression=30+2+*+*+*&zone=Europe/Berlin&after=2027-03-25T00:00")
	x.sees("+02:00")
	x.open("forecast", "/console/forecast?tenant=acme")
	x.open("audit", "/console/audit?tenant=acme")
	x.sees("TaskService/CancelTask")
	x.open("unknown", "/console/nosuch")
	x.open("overview", "/console/")
	x.do(chromedp.KeyEvent("\t"))
	x.click("details.who summary")
	x.click(".who form button")
	x.sees("Log in")
}
