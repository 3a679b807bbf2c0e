//! The page about the system.

use serde_json::json;

use super::desk::{Desk, session};
use crate::api::on_both;

on_both! {
    fn the_system_page_shows_what_doctor_finds_and_what_runs(kind) {
        let desk = Desk::new(kind);
        desk.browser.disable_scripts();
        desk.plant();
        let _ = desk.app.ops().post("/v1/providers/catcher/pause?tenant=default", &json!({"reason": "<b>401</b>"})).expect(200);
        desk.open("/system");
        let findings = desk.text("[aria-labelledby=h-findings]");
        assert!(findings.contains("catcher: paused: <b>401</b>; fix the cause") && findings.contains("problem"), "{findings}");
        assert!(findings.contains("deliveries parked as config") || findings.contains("2 parked"), "{findings}");
        let page = desk.text("main");
        assert!(page.contains("No process delivers.") && page.contains("Nothing is being sent."), "{page}");
        let facts = desk.text("[aria-labelledby=h-facts]");
        assert!(facts.contains("dispatch.lease_s") && facts.contains("Schema") && !facts.contains("password"), "{facts}");
        assert!(desk.text("[aria-labelledby=h-space] header p").contains(['M', 'K']), "{page}");
        desk.is_unhurt();
        desk.picture(&format!("system-{kind:?}"));
        // It concerns all tenants, so it is neither drawn for nor answered to a person of one.
        let (admin, _) = session(&desk.app, "default", "admin");
        let refused = admin.get("/system").expect(403).text();
        assert!(refused.contains("the scope `ops`") && !refused.contains("catcher"), "{refused}");
        assert!(!admin.get("/notifications").expect(200).text().contains("/system"));
    }
}
