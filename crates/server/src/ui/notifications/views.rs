//! Saved views of the list: named filters, which this browser keeps in a cookie.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

use super::draw;
use super::filter::Filter;
use crate::app::AppState;
use crate::auth::cookie_named;
use crate::problem::{Answer, Problem};
use crate::ui::acts::{Done, Fields, Posted, see};
use crate::ui::frame::Visitor;

/// The cookie with the views. Only the list reads it.
const COOKIE: &str = "postcommit-views";
/// The maximum number of views.
const VIEWS: usize = 10;
/// The maximum length of a view's name in characters. The minimum is 1.
pub const NAME_CHARS: usize = 60;
/// The maximum length of a view's filter in characters.
const FILTER_CHARS: usize = 300;
/// The maximum length of the cookie. Browsers silently drop cookies above 4,096 bytes, the attributes included.
const COOKIE_BYTES: usize = 3_800;

/// A view of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct View {
    pub name: String,
    /// The filter as a query, without the position of the page.
    #[serde(skip)]
    query: String,
    pub href: String,
    pub is_chosen: bool,
}

/// Returns the views in the browser's cookie. A view whose filter cannot be read is left out.
pub fn kept(headers: &HeaderMap, chosen: &Filter) -> Vec<View> {
    let cookie = cookie_named(headers, COOKIE).unwrap_or_default();
    let pairs = form_urlencoded::parse(cookie.as_bytes()).take(VIEWS);
    pairs.filter_map(|(name, query)| view(&name, &query, chosen)).collect()
}

fn view(name: &str, query: &str, chosen: &Filter) -> Option<View> {
    let filter = Filter::read(query).ok()?.ok()?;
    let (query, href) = (filter.query(), filter.first_page());
    Some(View { name: name.to_owned(), is_chosen: query == chosen.query(), query, href })
}

/// Returns the views with an additional one. A view of the same name is replaced.
///
/// # Errors
/// The name or the filter is too long, or there are too many views.
fn with(mut views: Vec<View>, name: &str, filter: &Filter) -> Result<Vec<View>, Problem> {
    let chars = name.chars().count();
    if !(1..=NAME_CHARS).contains(&chars) || name.contains(char::is_control) {
        let detail = format!("has {chars} characters; 1 to {NAME_CHARS} are allowed, and no line breaks");
        return Err(Problem::invalid("name", detail));
    }
    let query = filter.query();
    if query.len() > FILTER_CHARS {
        let detail = format!("the filter has {} characters; at most {FILTER_CHARS} are kept", query.len());
        return Err(Problem::invalid("name", detail));
    }
    views.retain(|view| view.name != name);
    if views.len() >= VIEWS {
        let detail = format!("this browser keeps {VIEWS} views; delete one first");
        return Err(Problem::invalid("name", detail));
    }
    views.push(View { name: name.to_owned(), query, href: filter.first_page(), is_chosen: true });
    if cookie(&views).len() > COOKIE_BYTES {
        return Err(Problem::invalid("name", "the views are longer than a browser keeps; delete one first"));
    }
    Ok(views)
}

fn cookie(views: &[View]) -> String {
    let pairs = views.iter().map(|view| (&view.name, &view.query));
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// Redirects to a page, and keeps the views in a cookie for a year.
fn keep(views: &[View], to: String) -> Response {
    let mut response = see(to);
    let cookie =
        format!("{COOKIE}={}; Path=/notifications; Max-Age=31536000; Secure; HttpOnly; SameSite=Lax", cookie(views));
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Saves the filter of the list as a view.
pub async fn save(State(app): State<AppState>, visitor: Visitor, headers: HeaderMap, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let name = fields.get("name").unwrap_or_default().trim();
    let filter = Filter::read(fields.get("filter").unwrap_or_default())?;
    let filter = filter
        .map_err(|_| Problem::invalid("filter", "has a search text (q) or an empty field; open the list again"))?;
    match with(kept(&headers, &filter), name, &filter) {
        Ok(views) => Ok(keep(&views, Done::one("view-saved").at(&visitor.link(&filter.first_page())))),
        Err(problem) => {
            let refused = Some((name, problem.to_string()));
            draw(&app, &visitor, &headers, &filter, StatusCode::UNPROCESSABLE_ENTITY, refused).await
        }
    }
}

/// Deletes a view.
pub async fn delete(visitor: Visitor, headers: HeaderMap, form: Posted) -> Answer {
    let fields: Fields = form?.into();
    let name = fields.get("name").unwrap_or_default();
    let mut views = kept(&headers, &Filter::default());
    views.retain(|view| view.name != name);
    Ok(keep(&views, Done::one("view-deleted").at(&visitor.link("/notifications"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_str(&format!("{COOKIE}={cookie}")).unwrap());
        headers
    }

    #[test]
    fn views_come_back_as_they_were_saved_and_have_limits() {
        let parked = Filter::default().with("state", "parked").with("title", "a b;c, \"d\"=&");
        let views = with(vec![], "My; view, \"1\" é", &parked).unwrap();
        let text = cookie(&views);
        assert!(!text.contains([';', ',', '"', ' ', '\\']), "{text}");
        assert_eq!(kept(&headers(&text), &parked), views);
        let again = with(views, "My; view, \"1\" é", &Filter::default().with("state", "sent")).unwrap();
        assert_eq!((again.len(), again[0].href.as_str()), (1, "/notifications?state=sent"), "replaced");
        let many = (0..VIEWS).fold(vec![], |views, n| with(views, &n.to_string(), &Filter::default()).unwrap());
        assert!(with(many, "one more", &parked).unwrap_err().to_string().contains("delete one first"));
        for (name, filter) in [
            (String::new(), Filter::default()),
            ("x".repeat(NAME_CHARS + 1), Filter::default()),
            ("x".into(), Filter::default().with("title", &"x".repeat(FILTER_CHARS))),
        ] {
            assert!(with(vec![], &name, &filter).is_err());
        }
        // Each view is within its limit, but together they are more than a browser keeps.
        let long = Filter::default().with("title", &"é".repeat(48));
        let all = (0..VIEWS).try_fold(vec![], |views, n| with(views, &format!("{n}{}", "é".repeat(50)), &long));
        assert!(all.unwrap_err().to_string().contains("longer than a browser keeps"));
    }

    #[test]
    fn a_forged_cookie_is_no_link() {
        for forged in ["x=https%3A%2F%2Fevil.example", "x=nonsense%3D1", "x=q%3Dsearch", "%ff=%ff", "=&=&"] {
            let views = kept(&headers(forged), &Filter::default());
            assert!(views.iter().all(|view| view.href.starts_with("/notifications")), "{forged}: {views:?}");
        }
    }
}
