//! Thread and parent domains: what is created in them, and the order of their ends.

use fake_libibverbs::{assert_all_is_well, ladder, with};
use verbs_core::error::ErrorKind;
use verbs_core::{AccessFlags, Error, QueuePair};

#[test]
fn a_device_without_thread_domains_has_none() {
    let (context, ..) = ladder();
    let refused = context.alloc_td().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn a_parent_domain_outlives_its_objects_and_keeps_its_parts() {
    let (context, pd, cq) = ladder();
    with(|library| library.thread_domains = true);
    let td = context.alloc_td().unwrap();
    // SAFETY: one thread uses everything here.
    let domain = unsafe { pd.alloc_parent_domain(&td) }.unwrap();
    assert_ne!(domain.as_ptr(), pd.as_ptr());
    let region = pd.reg_mr(vec![0_u8; 8]).unwrap();
    let other = domain.reg_mr(vec![0_u8; 8]).unwrap();
    let qp = QueuePair::builder(&domain, &cq, &cq).build().unwrap();
    assert_eq!(qp.pd().as_ptr(), domain.as_ptr());
    // SAFETY: one thread uses everything here.
    let second = unsafe { domain.alloc_parent_domain(&td) }.unwrap();
    for is_one in [
        domain.is(&pd),
        pd.is(&domain),
        second.is(&domain),
        pd.is(&pd.clone()),
    ] {
        assert!(is_one);
    }
    let unrelated = context.alloc_pd().unwrap();
    assert!(!unrelated.is(&domain) && !domain.is(&unrelated));

    assert!(matches!(td.clone().close(), Err(Error::InUse { .. })));
    assert!(matches!(domain.clone().close(), Err(Error::InUse { .. })));
    // In the order in which C would not have it.
    drop((
        context, pd, td, domain, second, unrelated, cq, region, other, qp,
    ));
    assert_all_is_well();
}

#[test]
fn an_element_is_of_the_parent_domains_of_its_domain() {
    let (context, pd, _cq) = ladder();
    with(|library| library.thread_domains = true);
    let td = context.alloc_td().unwrap();
    // SAFETY: nothing is created in it.
    let domain = unsafe { pd.alloc_parent_domain(&td) }.unwrap();
    let unrelated = context.alloc_pd().unwrap();
    for of in [&pd, &domain] {
        let region = of.reg_shared(vec![0_u8; 8], AccessFlags::REMOTE_READ);
        let region = region.unwrap();
        let element = region.element(..).unwrap();
        assert!(element.is_of(&pd) && element.is_of(&domain));
        assert!(!element.is_of(&unrelated));
    }
}

#[test]
fn a_parent_domain_ends_before_its_thread_domain() {
    let (context, pd, cq) = ladder();
    with(|library| library.thread_domains = true);
    let td = context.alloc_td().unwrap();
    // SAFETY: nothing is created in it.
    let domain = unsafe { pd.alloc_parent_domain(&td) }.unwrap();
    with(|library| library.calls.clear());
    domain.close().unwrap();
    td.close().unwrap();
    assert_eq!(
        with(|library| library.calls.clone()),
        ["ibv_dealloc_pd", "ibv_dealloc_td"]
    );
    let (foreign, ..) = ladder();
    let td = foreign.alloc_td().unwrap();
    // SAFETY: it is rejected.
    let refused = unsafe { pd.alloc_parent_domain(&td) }.unwrap_err();
    assert!(matches!(refused, Error::ForeignContext { .. }), "{refused}");
    drop((td, foreign, pd, cq, context));
    assert_all_is_well();
}
